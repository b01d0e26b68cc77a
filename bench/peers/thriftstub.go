package main

import (
	"context"
	"errors"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
)

// Stubs written by hand, as thrift's compiler would make them of
//
//	service Echo { binary echo(1: binary data) }

const thriftMethod = "echo"

// thriftStruct has one binary field: the arguments of echo, or its result.
type thriftStruct struct {
	name  string
	field int16
	data  []byte // nil: not set
}

func thriftArgs(data []byte) *thriftStruct   { return &thriftStruct{"echo_args", 1, data} }
func thriftResult(data []byte) *thriftStruct { return &thriftStruct{"echo_result", 0, data} }

func (s *thriftStruct) Read(ctx context.Context, in thrift.TProtocol) error {
	if _, err := in.ReadStructBegin(ctx); err != nil {
		return err
	}
	for {
		_, kind, id, err := in.ReadFieldBegin(ctx)
		if err != nil {
			return err
		}
		if kind == thrift.STOP {
			return in.ReadStructEnd(ctx)
		}
		if err := s.readField(ctx, in, kind, id); err != nil {
			return err
		}
		if err := in.ReadFieldEnd(ctx); err != nil {
			return err
		}
	}
}

func (s *thriftStruct) readField(ctx context.Context, in thrift.TProtocol, kind thrift.TType, id int16) (err error) {
	if id != s.field || kind != thrift.STRING {
		return in.Skip(ctx, kind)
	}
	s.data, err = in.ReadBinary(ctx)
	return err
}

func (s *thriftStruct) Write(ctx context.Context, out thrift.TProtocol) error {
	if err := out.WriteStructBegin(ctx, s.name); err != nil {
		return err
	}
	if s.data != nil {
		if err := s.writeField(ctx, out); err != nil {
			return err
		}
	}
	if err := out.WriteFieldStop(ctx); err != nil {
		return err
	}
	return out.WriteStructEnd(ctx)
}

func (s *thriftStruct) writeField(ctx context.Context, out thrift.TProtocol) error {
	if err := out.WriteFieldBegin(ctx, "data", thrift.STRING, s.field); err != nil {
		return err
	}
	if err := out.WriteBinary(ctx, s.data); err != nil {
		return err
	}
	return out.WriteFieldEnd(ctx)
}

func callThrift(ctx context.Context, c thrift.TClient, data []byte) ([]byte, error) {
	result := thriftResult(nil)
	if _, err := c.Call(ctx, thriftMethod, thriftArgs(data), result); err != nil {
		return nil, err
	}
	if result.data == nil {
		return nil, thrift.NewTApplicationException(thrift.MISSING_RESULT, "echo failed: unknown result")
	}
	return result.data, nil
}

// thriftProcessor has the functions of a service by name.
type thriftProcessor map[string]thrift.TProcessorFunction

func newThriftProcessor(h thriftHandler) thrift.TProcessor { return thriftProcessor{thriftMethod: h} }

func (p thriftProcessor) ProcessorMap() map[string]thrift.TProcessorFunction { return p }

func (p thriftProcessor) AddToProcessorMap(name string, f thrift.TProcessorFunction) { p[name] = f }

func (p thriftProcessor) Process(ctx context.Context, in, out thrift.TProtocol) (bool, thrift.TException) {
	name, _, seq, err := in.ReadMessageBegin(ctx)
	if err != nil {
		return false, thrift.WrapTException(err)
	}
	if f, ok := p[name]; ok {
		return f.Process(ctx, seq, in, out)
	}
	if err := errors.Join(in.Skip(ctx, thrift.STRUCT), in.ReadMessageEnd(ctx)); err != nil {
		return false, thrift.WrapTException(err)
	}
	unknown := thrift.NewTApplicationException(thrift.UNKNOWN_METHOD, "Unknown function "+name)
	if err := thriftReply(ctx, out, name, thrift.EXCEPTION, seq, unknown); err != nil {
		return false, thrift.WrapTException(err)
	}
	return false, unknown
}

// thriftHandler is echo as a service implements it.
type thriftHandler func(ctx context.Context, data []byte) ([]byte, error)

func (h thriftHandler) Process(ctx context.Context, seq int32, in, out thrift.TProtocol) (bool, thrift.TException) {
	args := thriftArgs(nil)
	if err := errors.Join(args.Read(ctx, in), in.ReadMessageEnd(ctx)); err != nil {
		broken := thrift.NewTApplicationException(thrift.PROTOCOL_ERROR, err.Error())
		return false, thrift.WrapTException(errors.Join(err, thriftReply(ctx, out, thriftMethod, thrift.EXCEPTION, seq, broken)))
	}
	data, failed := h.watched(ctx, in.Transport(), args.data)
	var err error
	if failed == nil {
		err = thriftReply(ctx, out, thriftMethod, thrift.REPLY, seq, thriftResult(data))
	} else {
		internal := thrift.NewTApplicationException(thrift.INTERNAL_ERROR, "Internal error processing echo: "+failed.Error())
		err = thriftReply(ctx, out, thriftMethod, thrift.EXCEPTION, seq, internal)
	}
	if err != nil {
		return false, &thrift.ProcessorError{WriteError: thrift.WrapTException(err), EndpointError: thrift.WrapTException(failed)}
	}
	return true, thrift.WrapTException(failed)
}

// watched runs h with a context that ends once the client has gone.
func (h thriftHandler) watched(ctx context.Context, client thrift.TTransport, data []byte) ([]byte, error) {
	if thrift.ServerConnectivityCheckInterval <= 0 {
		return h(ctx, data)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	go thriftWatch(watching, client, cancel)
	return h(ctx, data)
}

func thriftWatch(ctx context.Context, client thrift.TTransport, gone context.CancelCauseFunc) {
	tick := time.NewTicker(thrift.ServerConnectivityCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !client.IsOpen() {
				gone(thrift.ErrAbandonRequest)
				return
			}
		}
	}
}

// thriftReply sends a result or an exception.
func thriftReply(ctx context.Context, out thrift.TProtocol, name string, kind thrift.TMessageType, seq int32, body thrift.TStruct) error {
	if err := out.WriteMessageBegin(ctx, name, kind, seq); err != nil {
		return err
	}
	if err := body.Write(ctx, out); err != nil {
		return err
	}
	if err := out.WriteMessageEnd(ctx); err != nil {
		return err
	}
	return out.Flush(ctx)
}
