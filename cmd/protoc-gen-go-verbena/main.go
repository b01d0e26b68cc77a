// Command protoc-gen-go-verbena is a protoc plugin that makes the stubs of
// services. It stands beside protoc-gen-go, which makes their messages:
//
//	protoc --go_out=. --go-verbena_out=. --go_opt=paths=source_relative --go-verbena_opt=paths=source_relative echo.proto
//
// For each file with services it writes one file, echo_verbena.pb.go. There a
// method Say of a service Echo is Echo_Say_Method, for rpc.Call. A method with idempotency_level NO_SIDE_EFFECTS or IDEMPOTENT may be executed
// more than once by the runtime, any other never is. Streaming methods are
// refused: better no stubs than stubs that lack a method. So is what would make
// two things of one name in Go; the error says which.
//
// The messages of such a file get methods by which codec.Proto encodes and
// decodes them without reflection, small ones several times as fast, and with
// the same result; see codec.Fast. Those that have maps, oneofs, groups, required
// fields, extensions or hidden fields, that may contain themselves, or that
// contain one of these or a message of another file, get none and are encoded
// as before. Where the methods of such a message would stand in
// echo_verbena.pb.go, a comment says why it has none:
//
//	// Table is left to protobuf: field rows is a map.
//
// If protoc-gen-go is told of a default_api_level, this plugin must be, too.
package main

import (
	"flag"
	"fmt"
	"os"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("protoc-gen-go-verbena, stubs version 1")
		return
	}
	var flags flag.FlagSet // none: an unknown parameter is refused
	protogen.Options{ParamFunc: flags.Set}.Run(generate)
}

// generate makes the stubs of all files that protoc asks for.
func generate(plugin *protogen.Plugin) error {
	plugin.SupportedFeatures = uint64(pluginpb.CodeGeneratorResponse_FEATURE_PROTO3_OPTIONAL | pluginpb.CodeGeneratorResponse_FEATURE_SUPPORTS_EDITIONS)
	plugin.SupportedEditionsMinimum = descriptorpb.Edition_EDITION_PROTO2
	plugin.SupportedEditionsMaximum = descriptorpb.Edition_EDITION_2023
	if err := checkNames(plugin.Files); err != nil {
		return err
	}
	for _, file := range plugin.Files {
		if !file.Generate || len(file.Services) == 0 {
			continue
		}
		if err := checkUnary(file); err != nil {
			return err
		}
		generateFile(plugin, file)
	}
	return nil
}

func checkUnary(file *protogen.File) error {
	for _, service := range file.Services {
		for _, m := range service.Methods {
			if m.Desc.IsStreamingClient() || m.Desc.IsStreamingServer() {
				return fmt.Errorf("%s: %s is a streaming method, and streaming is not supported yet", file.Desc.Path(), m.Desc.FullName())
			}
		}
	}
	return nil
}
