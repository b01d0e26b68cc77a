package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/verbena-rpc/verbena/examples/blockstore/blockpb"
	"github.com/verbena-rpc/verbena/examples/blockstore/internal/blockfile"
	"github.com/verbena-rpc/verbena/rpc"
)

// service serves blocks from a file.
type service struct{ file *blockfile.File }

func (s service) Put(ctx context.Context, req *blockpb.PutRequest) (*blockpb.PutReply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.file.Put(req.Id, req.Data); err != nil {
		return nil, withCode(err)
	}
	return &blockpb.PutReply{}, nil
}

func (s service) Get(_ context.Context, req *blockpb.GetRequest) (*blockpb.GetReply, error) {
	data, err := s.file.Get(req.Id)
	if err != nil {
		return nil, withCode(err)
	}
	return &blockpb.GetReply{Data: data}, nil
}

func (s service) Delete(ctx context.Context, req *blockpb.DeleteRequest) (*blockpb.DeleteReply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.file.Delete(req.Id); err != nil {
		return nil, withCode(err)
	}
	return &blockpb.DeleteReply{}, nil
}

// withCode gives an error of the file the code that callers know it by.
func withCode(err error) error {
	code := rpc.Internal
	var limit *blockfile.LimitError
	var corrupt *blockfile.CorruptError
	switch {
	case errors.Is(err, blockfile.ErrNotFound):
		code = rpc.NotFound
	case errors.Is(err, blockfile.ErrClosed):
		code = rpc.Unavailable
	case errors.As(err, &corrupt):
		code = rpc.DataLoss
	case errors.As(err, &limit) && limit.Limit == "BlockBytes":
		code = rpc.InvalidArgument
	case errors.As(err, &limit), errors.Is(err, syscall.ENOSPC):
		code = rpc.ResourceExhausted
	}
	return rpc.Errorf(code, "%w", err)
}
