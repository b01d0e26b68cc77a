// Package testpb holds generated stubs: the golden output of the generator,
// which the compiler and a server put to the test.
package testpb

//go:generate go build -o ../../../../bin/ google.golang.org/protobuf/cmd/protoc-gen-go github.com/verbena-rpc/verbena/cmd/protoc-gen-go-verbena
//go:generate protoc --plugin=../../../../bin/protoc-gen-go --plugin=../../../../bin/protoc-gen-go-verbena --go_out=. --go_opt=paths=source_relative --go-verbena_out=. --go-verbena_opt=paths=source_relative testpb.proto otherpb/other.proto oddpb/odd.proto oddpb/c/c.proto oddpb/ctx/ctx.proto oddpb/req/req.proto
//go:generate protoc --include_imports --include_source_info --descriptor_set_out=../../testdata/protos.binpb -I . -I ../../testdata -I ../../../../codec/internal/testpb testpb.proto oddpb/odd.proto streams.proto messages.proto plain.proto legacy.proto
