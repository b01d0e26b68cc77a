package main

import (
	"fmt"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// names says what each identifier at the top of a Go package stands for.
type names map[protogen.GoIdent]protoreflect.Descriptor

// checkNames refuses stubs with a name that something else in their package
// has, which would not compile. What protoc-gen-go makes of two messages is
// left to it.
func checkNames(files []*protogen.File) error {
	taken := names{}
	for _, file := range files {
		taken.messages(file.Messages)
		taken.enums(file.Enums)
		taken.extensions(file.Extensions)
	}
	for _, file := range files {
		if !file.Generate {
			continue
		}
		for _, service := range file.Services {
			if err := taken.stubs(service, file.GoImportPath); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n names) messages(list []*protogen.Message) {
	for _, m := range list {
		n[m.GoIdent] = m.Desc
		for _, f := range m.Fields {
			if f.Oneof != nil && !f.Oneof.Desc.IsSynthetic() {
				n[f.GoIdent] = f.Desc
			}
			if f.Desc.HasDefault() {
				n[m.GoIdent.GoImportPath.Ident("Default_"+m.GoIdent.GoName+"_"+f.GoName)] = f.Desc
			}
		}
		n.messages(m.Messages)
		n.enums(m.Enums)
		n.extensions(m.Extensions)
	}
}

func (n names) enums(list []*protogen.Enum) {
	for _, e := range list {
		n[e.GoIdent] = e.Desc
		for _, v := range e.Values {
			n[v.GoIdent] = v.Desc
		}
	}
}

func (n names) extensions(list []*protogen.Extension) {
	for _, x := range list {
		n[x.GoIdent.GoImportPath.Ident("E_"+x.GoIdent.GoName)] = x.Desc
	}
}

// stubs adds the names of what is generated for a service.
func (n names) stubs(s *protogen.Service, path protogen.GoImportPath) error {
	for _, name := range []string{
		clientName(s), clientStructName(s), newClientName(s),
		serverName(s), registerName(s), unimplementedName(s), serviceDescName(s),
	} {
		if err := n.add(path.Ident(name), s.Desc); err != nil {
			return err
		}
	}
	for _, m := range s.Methods {
		if err := n.add(path.Ident(methodName(m)), m.Desc); err != nil {
			return err
		}
	}
	return nil
}

func (n names) add(ident protogen.GoIdent, what protoreflect.Descriptor) error {
	if other, ok := n[ident]; ok {
		return fmt.Errorf("%s: the stubs of %s need the name %s, which is taken by %s of %s: rename one of the two",
			what.ParentFile().Path(), what.FullName(), ident.GoName, other.FullName(), other.ParentFile().Path())
	}
	n[ident] = what
	return nil
}
