package main

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/verbena-rpc/verbena/bench/internal/echo"
	"github.com/verbena-rpc/verbena/bench/internal/load"
)

var (
	// Frames are written as length and content: the buffer makes one write of small ones.
	thriftTransport = thrift.NewTFramedTransportFactoryConf(thrift.NewTBufferedTransportFactory(8192), nil)
	thriftProtocol  = thrift.NewTBinaryProtocolFactoryConf(nil)
)

func serveThrift(ready func(net.Addr)) error {
	socket, err := thrift.NewTServerSocket("127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := socket.Listen(); err != nil {
		return err
	}
	ready(socket.Addr())
	processor := newThriftProcessor(func(_ context.Context, data []byte) ([]byte, error) { return data, nil })
	return thrift.NewTSimpleServer4(processor, socket, thriftTransport, thriftProtocol).Serve()
}

type thriftConn struct {
	transport thrift.TTransport
	mu        sync.Mutex // held for a call: a client makes one at a time
	client    thrift.TClient
}

func thriftDial(addr string) (*thriftConn, error) {
	transport, err := thriftTransport.GetTransport(thrift.NewTSocketConf(addr, nil))
	if err != nil {
		return nil, err
	}
	if err := transport.Open(); err != nil {
		return nil, err
	}
	client := thrift.NewTStandardClient(thriftProtocol.GetProtocol(transport), thriftProtocol.GetProtocol(transport))
	return &thriftConn{transport: transport, client: client}, nil
}

func (c *thriftConn) newCall(size int) load.Call {
	request := make([]byte, size)
	return func(ctx context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		reply, err := callThrift(ctx, c.client, request)
		if err != nil {
			return err
		}
		return echo.Check(reply, size)
	}
}

func dialThrift(_ context.Context, addr string) (conn, error) {
	c, err := thriftDial(addr)
	if err != nil {
		return nil, err
	}
	return calls{c.newCall, c.transport.Close}, nil
}

// thriftPool has a connection for each caller.
type thriftPool struct {
	addr  string
	mu    sync.Mutex
	conns []*thriftConn
}

func dialThriftPool(_ context.Context, addr string) (conn, error) {
	p := &thriftPool{addr: addr}
	return calls{p.newCall, p.close}, nil
}

// newCall connects; calls report it if that failed.
func (p *thriftPool) newCall(size int) load.Call {
	c, err := thriftDial(p.addr)
	if err != nil {
		return func(context.Context) error { return err }
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, c)
	return c.newCall(size)
}

func (p *thriftPool) close() (err error) {
	for _, c := range p.conns {
		err = errors.Join(err, c.transport.Close())
	}
	return err
}
