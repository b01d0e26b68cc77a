// Package testpb has messages with fields of every kind, and messages that
// codec.Fast is not generated for.
package testpb

//go:generate go build -o ../../../bin/ google.golang.org/protobuf/cmd/protoc-gen-go github.com/verbena-rpc/verbena/cmd/protoc-gen-go-verbena
//go:generate protoc --plugin=../../../bin/protoc-gen-go --plugin=../../../bin/protoc-gen-go-verbena --go_out=. --go_opt=paths=source_relative --go-verbena_out=. --go-verbena_opt=paths=source_relative plain.proto legacy.proto
