package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/verbena-rpc/verbena/cmd/protoc-gen-go-verbena/internal/testpb"
	"github.com/verbena-rpc/verbena/cmd/protoc-gen-go-verbena/internal/testpb/otherpb"
	"github.com/verbena-rpc/verbena/rpc"
	"github.com/verbena-rpc/verbena/transport"
	"github.com/verbena-rpc/verbena/transport/tcp"
)

// run gives the generator what protoc would give it for the named file of
// testdata/protos.binpb.
func run(t *testing.T, file string, parameters ...string) (*pluginpb.CodeGeneratorResponse, error) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "protos.binpb"))
	require.NoError(t, err)
	var set descriptorpb.FileDescriptorSet
	require.NoError(t, proto.Unmarshal(b, &set))
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String(strings.Join(append(parameters, "paths=source_relative"), ",")),
		ProtoFile:      set.File,
	})
	require.NoError(t, err)
	err = generate(plugin)
	return plugin.Response(), err
}

// The output is what is committed, which compiles, or this test would not.
func TestGolden(t *testing.T) {
	for file, dir := range map[string]string{
		"testpb": "internal/testpb",
		"plain":  "../../codec/internal/testpb",
		"legacy": "../../codec/internal/testpb",
	} {
		resp, err := run(t, file+".proto")
		require.NoError(t, err)
		require.Empty(t, resp.GetError())
		require.Len(t, resp.File, 1)
		require.Equal(t, file+"_verbena.pb.go", resp.File[0].GetName())
		want, err := os.ReadFile(filepath.Join(filepath.FromSlash(dir), resp.File[0].GetName()))
		require.NoError(t, err)
		require.Equal(t, string(want), resp.File[0].GetContent(), "run go generate if the change is meant")
	}
}

// Fields of the opaque API are not for generated code of others to touch.
func TestHiddenFields(t *testing.T) {
	resp, err := run(t, "testpb.proto", "default_api_level=API_OPAQUE")
	require.NoError(t, err)
	require.Contains(t, resp.File[0].GetContent(), "// AddRequest is left to protobuf: its fields are hidden.")
	require.NotContains(t, resp.File[0].GetContent(), "SizeVerbena")
}

func TestFilesWithoutServices(t *testing.T) {
	resp, err := run(t, "messages.proto")
	require.NoError(t, err)
	require.Empty(t, resp.File)
	require.NotZero(t, resp.GetSupportedFeatures()&uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL))
}

func TestStreamsAreRefused(t *testing.T) {
	resp, err := run(t, "streams.proto")
	require.EqualError(t, err, "streams.proto: verbena.test.streams.Log.Tail is a streaming method, and streaming is not supported yet")
	require.Empty(t, resp.File)
}

func TestOptions(t *testing.T) {
	require.False(t, testpb.Counter_Add.Idempotent)
	require.True(t, testpb.Counter_Get.Idempotent)
	require.True(t, testpb.Counter_SetTo.Idempotent)
	require.Equal(t, "/verbena.test.v1.Counter/set_to", testpb.Counter_SetTo.Name)
}

// counter leaves Reset to the embedded struct.
type counter struct {
	testpb.UnimplementedCounterServer
	n atomic.Int64
}

func (c *counter) Add(_ context.Context, req *testpb.AddRequest) (*testpb.Count, error) {
	return &testpb.Count{N: c.n.Add(req.N)}, nil
}

func (c *counter) Get(context.Context, *otherpb.Nothing) (*testpb.Count, error) {
	return &testpb.Count{N: c.n.Load()}, nil
}

func (c *counter) SetTo(_ context.Context, req *testpb.Count) (*otherpb.Nothing, error) {
	c.n.Store(req.N)
	return &otherpb.Nothing{}, nil
}

func TestStubsCall(t *testing.T) {
	network := &transport.Network{Carrier: &tcp.Carrier{}}
	server := rpc.NewServer(network)
	require.NoError(t, testpb.RegisterCounterServer(server, &counter{}))
	var twice *rpc.RegisterError
	require.ErrorAs(t, testpb.RegisterCounterServer(server, &counter{}), &twice)
	require.NoError(t, testpb.RegisterEmptyServer(server, struct{}{}))
	require.NoError(t, server.Listen("127.0.0.1:0"))
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()

	ctx := t.Context()
	conn, err := rpc.Dial(ctx, network, server.Addr().String())
	require.NoError(t, err)
	client := testpb.NewCounterClient(conn)

	_, err = client.SetTo(ctx, &testpb.Count{N: 40})
	require.NoError(t, err)
	sum, err := client.Add(ctx, &testpb.AddRequest{N: 2})
	require.NoError(t, err)
	require.EqualValues(t, 42, sum.N)
	got, err := client.Get(ctx, &otherpb.Nothing{})
	require.NoError(t, err)
	require.EqualValues(t, 42, got.N)
	//lint:ignore SA1019 what deprecated methods do is tested here
	_, err = client.Reset(ctx, &otherpb.Nothing{})
	require.ErrorIs(t, err, rpc.Unimplemented)

	require.NoError(t, conn.Close())
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-served, rpc.ErrServerClosed)
}
