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
	"google.golang.org/protobuf/encoding/prototext"
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
	return runOn(t, set.File, file, parameters...)
}

func runOn(t *testing.T, files []*descriptorpb.FileDescriptorProto, file string, parameters ...string) (*pluginpb.CodeGeneratorResponse, error) {
	t.Helper()
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{file},
		Parameter:      proto.String(strings.Join(append(parameters, "paths=source_relative"), ",")),
		ProtoFile:      files,
	})
	require.NoError(t, err)
	err = generate(plugin)
	return plugin.Response(), err
}

// The output is what is committed, which compiles, or this test would not.
func TestGolden(t *testing.T) {
	for file, dir := range map[string]string{
		"testpb":    "internal/testpb",
		"oddpb/odd": "internal/testpb",
		"plain":     "../../codec/internal/testpb",
		"legacy":    "../../codec/internal/testpb",
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
	require.Contains(t, resp.File[0].GetContent(), "// AddRequest is left to protobuf: its fields may be hidden.")
	require.NotContains(t, resp.File[0].GetContent(), "SizeVerbena")
}

// editions is what protoc makes of a file that has features in place of a
// syntax. Not every protoc that is in use can.
const editions = `
	name: "editions.proto" package: "editions" syntax: "editions" edition: EDITION_2023
	options { go_package: "verbena.test/editions" }
	service { name: "Editions" }
	message_type {
		name: "Plain"
		field { name: "any" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING options { features { utf8_validation: NONE } } }
		field { name: "text" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING options { features { field_presence: IMPLICIT } } }
		field { name: "loose" number: 3 label: LABEL_REPEATED type: TYPE_INT32 options { features { repeated_field_encoding: EXPANDED } } }
		field { name: "packed" number: 4 label: LABEL_REPEATED type: TYPE_INT32 }
	}
	message_type {
		name: "Delimited"
		field { name: "part" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".editions.Plain"
			options { features { message_encoding: DELIMITED } } }
	}
	message_type {
		name: "Needs"
		field { name: "n" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 options { features { field_presence: LEGACY_REQUIRED } } }
	}`

func TestEditions(t *testing.T) {
	var file descriptorpb.FileDescriptorProto
	require.NoError(t, prototext.Unmarshal([]byte(editions), &file))
	resp, err := runOn(t, []*descriptorpb.FileDescriptorProto{&file}, "editions.proto")
	require.NoError(t, err)
	require.Len(t, resp.File, 1)
	for _, line := range []string{
		"b = fastpb.AnyString(b, fastpb.Present(&x.Any))",
		"b = fastpb.String(b, &x.Text)",
		"b = fastpb.PutTag(b, 3<<3|fastpb.VARINT)",
		"b = fastpb.PutTag(b, 4<<3|fastpb.LEN)",
		"// Delimited is left to protobuf: field part is a group.",
		"// Needs is left to protobuf: field n is required.",
	} {
		require.Contains(t, resp.File[0].GetContent(), line)
	}
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

// What would be two things of one name in Go is refused: broken stubs would not
// say what to rename.
func TestTakenNames(t *testing.T) {
	method := func(name string) string {
		return `method { name: "` + name + `" input_type: ".p.M" output_type: ".p.M" }`
	}
	volume := `service { name: "Volume" ` + method("Attach") + ` }`
	for _, c := range []struct{ file, by, name, of string }{
		{`service { name: "A" ` + method("B_C") + ` } service { name: "A_B" ` + method("C") + ` }`,
			"p.A_B.C", "A_B_C_Method", "p.A.B_C of p.proto"},
		{`service { name: "S" ` + method("Get") + method("get") + ` }`, "p.S.get", "S_Get_Method", "p.S.Get of p.proto"},
		{`service { name: "Store" } service { name: "store" }`, "p.store", "StoreClient", "p.Store of p.proto"},
		{`service { name: "NewStore" } service { name: "Store" }`, "p.Store", "NewStoreClient", "p.NewStore of p.proto"},
		{volume + ` message_type { name: "Volume_Attach_Method" }`,
			"p.Volume.Attach", "Volume_Attach_Method", "p.Volume_Attach_Method of p.proto"},
		{volume + ` message_type { name: "volume" nested_type { name: "Attach_Method" } }`,
			"p.Volume.Attach", "Volume_Attach_Method", "p.volume.Attach_Method of p.proto"},
		{volume + ` message_type { name: "volume" oneof_decl { name: "one" }
			field { name: "Attach_Method" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 oneof_index: 0 } }`,
			"p.Volume.Attach", "Volume_Attach_Method", "p.volume.Attach_Method of p.proto"},
		{volume + ` enum_type { name: "VolumeServer" value { name: "ZERO" number: 0 } }`,
			"p.Volume", "VolumeServer", "p.VolumeServer of p.proto"},
		{volume + ` message_type { name: "volume" enum_type { name: "E" value { name: "ServiceDesc" number: 0 } } }`,
			"p.Volume", "Volume_ServiceDesc", "p.volume.ServiceDesc of p.proto"},
		{`service { name: "E" ` + method("X") + ` }
			extension { name: "X_Method" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 extendee: ".p.Open" }
			message_type { name: "Open" extension_range { start: 1 end: 2 } }`,
			"p.E.X", "E_X_Method", "p.X_Method of p.proto"},
		{`service { name: "E_Open" ` + method("X") + ` } message_type { name: "Open" extension_range { start: 1 end: 2 }
			extension { name: "X_Method" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 extendee: ".p.Open" } }`,
			"p.E_Open.X", "E_Open_X_Method", "p.Open.X_Method of p.proto"},
		{`service { name: "Default_M" ` + method("X") + ` } message_type { name: "m"
			field { name: "X_Method" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 default_value: "1" } }`,
			"p.Default_M.X", "Default_M_X_Method", "p.m.X_Method of p.proto"},
		{`service { name: "Other" }`, "p.Other", "OtherClient", "p.OtherClient of other.proto"},
	} {
		var other, file descriptorpb.FileDescriptorProto
		require.NoError(t, prototext.Unmarshal([]byte(`name: "other.proto" package: "p" options { go_package: "verbena.test/p" }
			message_type { name: "M" } message_type { name: "OtherClient" }`), &other))
		require.NoError(t, prototext.Unmarshal([]byte(`name: "p.proto" package: "p" options { go_package: "verbena.test/p" }
			dependency: "other.proto" `+c.file), &file))
		resp, err := runOn(t, []*descriptorpb.FileDescriptorProto{&other, &file}, "p.proto")
		require.EqualError(t, err, "p.proto: the stubs of "+c.by+" need the name "+c.name+", which is taken by "+c.of+": rename one of the two")
		require.Empty(t, resp.File)
	}
}

// Names of other Go packages are free, and files that get no stubs are let be.
func TestNamesElsewhere(t *testing.T) {
	var other, file descriptorpb.FileDescriptorProto
	require.NoError(t, prototext.Unmarshal([]byte(`name: "other.proto" package: "p" options { go_package: "verbena.test/other" }
		message_type { name: "StoreClient" } message_type { name: "GateClient" } service { name: "Gate" }`), &other))
	require.NoError(t, prototext.Unmarshal([]byte(`name: "p.proto" package: "p" options { go_package: "verbena.test/p" }
		dependency: "other.proto" service { name: "Store" }`), &file))
	resp, err := runOn(t, []*descriptorpb.FileDescriptorProto{&other, &file}, "p.proto")
	require.NoError(t, err)
	require.Len(t, resp.File, 1)
}

func TestOptions(t *testing.T) {
	require.False(t, testpb.Counter_Add_Method.Idempotent)
	require.True(t, testpb.Counter_Get_Method.Idempotent)
	require.True(t, testpb.Counter_SetTo_Method.Idempotent)
	require.Equal(t, "/verbena.test.v1.Counter/set_to", testpb.Counter_SetTo_Method.Name)
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
