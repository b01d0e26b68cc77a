package main

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	fastpbPackage = protogen.GoImportPath("github.com/verbena-rpc/verbena/codec/fastpb")
	mathPackage   = protogen.GoImportPath("math")
	slicesPackage = protogen.GoImportPath("slices")
)

// kind is how fields of one kind are encoded.
type kind struct {
	wire string // name of the wire type in fastpb
	size int    // of a value; 0 if it depends on the value
	name string // of the functions in fastpb
}

var kinds = map[protoreflect.Kind]kind{
	protoreflect.BoolKind:     {"VARINT", 1, "Bool"},
	protoreflect.EnumKind:     {"VARINT", 0, "Varint"},
	protoreflect.Int32Kind:    {"VARINT", 0, "Varint"},
	protoreflect.Sint32Kind:   {"VARINT", 0, "Sint32"},
	protoreflect.Uint32Kind:   {"VARINT", 0, "Varint"},
	protoreflect.Int64Kind:    {"VARINT", 0, "Varint"},
	protoreflect.Sint64Kind:   {"VARINT", 0, "Sint64"},
	protoreflect.Uint64Kind:   {"VARINT", 0, "Varint"},
	protoreflect.Sfixed32Kind: {"I32", 4, "Fixed32"},
	protoreflect.Fixed32Kind:  {"I32", 4, "Fixed32"},
	protoreflect.FloatKind:    {"I32", 4, "Float"},
	protoreflect.Sfixed64Kind: {"I64", 8, "Fixed64"},
	protoreflect.Fixed64Kind:  {"I64", 8, "Fixed64"},
	protoreflect.DoubleKind:   {"I64", 8, "Double"},
	protoreflect.StringKind:   {"LEN", 0, "String"},
	protoreflect.BytesKind:    {"LEN", 0, "Bytes"},
	protoreflect.MessageKind:  {"LEN", 0, "Message"},
}

// field is a field with all that its code depends on.
type field struct {
	kind
	at   string // where it is: "x.Data"
	num  protowire.Number
	desc protoreflect.FieldDescriptor
}

func newField(f *protogen.Field) field {
	k := kinds[f.Desc.Kind()]
	if f.Desc.Kind() == protoreflect.StringKind && !checksUTF8(f.Desc) {
		k.name = "AnyString"
	}
	return field{k, "x." + f.GoName, f.Desc.Number(), f.Desc}
}

// checksUTF8 says whether protobuf-go refuses a string that is not UTF-8.
func checksUTF8(f protoreflect.FieldDescriptor) bool {
	if f.Syntax() == protoreflect.Editions {
		feature, ok := f.(interface{ EnforceUTF8() bool })
		return ok && feature.EnforceUTF8()
	}
	return f.Syntax() == protoreflect.Proto3
}

func (f field) tag(wire string) string {
	return fmt.Sprintf("%d<<3|%s", f.num, wire)
}

// pointer says whether a field that is not a list is a pointer to its value.
func (f field) pointer() bool {
	return f.desc.HasPresence() && f.desc.Kind() != protoreflect.BytesKind && f.desc.Kind() != protoreflect.MessageKind
}

// fastWriter writes the methods of messages to a file.
type fastWriter struct {
	*protogen.GeneratedFile
	obstacles obstacles
}

func (w fastWriter) fastpb(name string) string { return w.QualifiedGoIdent(fastpbPackage.Ident(name)) }

// file writes what follows the stubs of a file.
func (w fastWriter) file(file *protogen.File) {
	w.P()
	w.P("// Messages encode and decode themselves, but for those that say why not.")
	w.P("const _ = ", fastpbPackage.Ident("SupportV1"))
	w.messages(file.Messages)
}

// messages writes the methods of all messages that have them, and says of the
// others why they have none.
func (w fastWriter) messages(list []*protogen.Message) {
	for _, m := range list {
		if m.Desc.IsMapEntry() {
			continue
		}
		w.P()
		if why := w.obstacles.of(m); why != "" {
			w.P("// ", m.GoIdent.GoName, " is left to protobuf: ", why, ".")
		} else {
			w.message(m)
		}
		w.messages(m.Messages)
	}
}

func (w fastWriter) message(m *protogen.Message) {
	fields := make([]field, len(m.Fields))
	for i, f := range m.Fields {
		fields[i] = newField(f)
	}
	slices.SortFunc(fields, func(a, b field) int { return int(a.num - b.num) })
	w.size(m.GoIdent.GoName, fields)
	w.P()
	w.marshal(m.GoIdent.GoName, fields)
	w.P()
	w.unmarshal(m.GoIdent.GoName)
	w.P()
	w.merge(m.GoIdent.GoName, fields)
}

func (w fastWriter) size(message string, fields []field) {
	w.P("// SizeVerbena is for codec.Proto.")
	w.P("func (x *", message, ") SizeVerbena() (n int) {")
	w.P("if x == nil {")
	w.P("return 0")
	w.P("}")
	for _, f := range fields {
		tag := protowire.SizeTag(f.num)
		switch {
		case f.desc.IsPacked():
			w.P("if len(", f.at, ") > 0 {")
			w.P("n += ", tag, " + ", w.fastpb("SizeLen"), "(", w.sizeOfElements(f), ")")
			w.P("}")
		case f.desc.IsList() && f.size > 0:
			w.P("n += ", tag+f.size, " * len(", f.at, ")")
		case f.desc.IsList():
			w.P("for _, v := range ", f.at, " {")
			w.P("n += ", tag, " + ", w.sizeOf(f, "v"))
			w.P("}")
		default:
			w.present(f, func(v string) { w.P("n += ", tag, " + ", w.sizeOf(f, v)) })
		}
	}
	w.P("return n + len(x.unknownFields)")
	w.P("}")
}

// marshal writes what writes the fields, the last first.
func (w fastWriter) marshal(message string, fields []field) {
	w.P("// MarshalVerbena is for codec.Proto.")
	w.P("func (x *", message, ") MarshalVerbena(b []byte) []byte {")
	w.P("if x == nil {")
	w.P("return b")
	w.P("}")
	w.P("b = ", w.fastpb("PutUnknown"), "(b, x.unknownFields)")
	for _, f := range slices.Backward(fields) {
		put := func(value string) { w.P("b = ", w.fastpb("Put"+f.name), "(b, ", value, ")") }
		putTag := func(wire string) { w.P("b = ", w.fastpb("PutTag"), "(b, ", f.tag(w.fastpb(wire)), ")") }
		switch {
		case f.desc.IsPacked():
			w.P("if len(", f.at, ") > 0 {")
			w.P("end := len(b)")
			w.P("for _, v := range ", slicesPackage.Ident("Backward"), "(", f.at, ") {")
			put("v")
			w.P("}")
			w.P("b = ", w.fastpb("PutLen"), "(b, end-len(b))")
			putTag("LEN")
			w.P("}")
		case f.desc.IsList():
			w.P("for _, v := range ", slicesPackage.Ident("Backward"), "(", f.at, ") {")
			put("v")
			putTag(f.wire)
			w.P("}")
		default:
			w.present(f, func(value string) {
				put(value)
				putTag(f.wire)
			})
		}
	}
	w.P("return b")
	w.P("}")
}

func (w fastWriter) unmarshal(message string) {
	w.P("// UnmarshalVerbena is for codec.Proto.")
	w.P("func (x *", message, ") UnmarshalVerbena(src []byte) bool {")
	w.P("if x == nil {")
	w.P("return false")
	w.P("}")
	w.P("x.Reset()")
	w.P("return x.MergeVerbena(src)")
	w.P("}")
}

func (w fastWriter) merge(message string, fields []field) {
	w.P("// MergeVerbena is for messages that contain this one.")
	w.P("func (x *", message, ") MergeVerbena(src []byte) bool {")
	w.P("for len(src) > 0 {")
	w.P("tag, b := ", w.fastpb("Tag"), "(src)")
	if len(fields) > 0 {
		w.P("switch tag {")
		for _, f := range fields {
			w.take(f)
		}
		w.P("default:")
	}
	w.P("b = ", w.fastpb("Unknown"), "(b, tag, &x.unknownFields)")
	if len(fields) > 0 {
		w.P("}")
	}
	w.P("if b == nil {")
	w.P("return false")
	w.P("}")
	w.P("src = b")
	w.P("}")
	w.P("return true")
	w.P("}")
}

func (w fastWriter) take(f field) {
	w.P("case ", f.tag(w.fastpb(f.wire)), ":")
	w.P("b = ", w.fastpb(w.taker(f)), "(b, ", w.target(f), ")")
	if f.desc.IsList() && f.wire != "LEN" {
		w.P("case ", f.tag(w.fastpb("LEN")), ":")
		w.P("p, rest := ", w.fastpb("Part"), "(b)")
		w.P(f.at, " = ", slicesPackage.Ident("Grow"), "(", f.at, ", ", w.elements(f), ")")
		w.P("for len(p) > 0 {")
		w.P("p = ", w.fastpb(f.name), "(p, ", w.target(f), ")")
		w.P("}")
		w.P("b = ", w.fastpb("After"), "(p, rest)")
	}
}

// present writes what is done with the value of a field that is not a list, if
// it is there.
func (w fastWriter) present(f field, do func(value string)) {
	value := f.at
	switch {
	case f.pointer():
		w.P("if ", f.at, " != nil {")
		value = "*" + f.at
	case f.desc.HasPresence():
		w.P("if ", f.at, " != nil {")
	case f.name == "Float":
		w.P("if ", mathPackage.Ident("Float32bits"), "(", f.at, ") != 0 {")
	case f.name == "Double":
		w.P("if ", mathPackage.Ident("Float64bits"), "(", f.at, ") != 0 {")
	case f.name == "Bool":
		w.P("if ", f.at, " {")
	case f.wire == "LEN":
		w.P("if len(", f.at, ") > 0 {")
	default:
		w.P("if ", f.at, " != 0 {")
	}
	do(value)
	w.P("}")
}

func (w fastWriter) sizeOf(f field, value string) string {
	switch {
	case f.size > 0:
		return fmt.Sprint(f.size)
	case f.name == "Message":
		return fmt.Sprintf("%s(%s.SizeVerbena())", w.fastpb("SizeLen"), value)
	case f.wire == "LEN":
		return fmt.Sprintf("%s(len(%s))", w.fastpb("SizeLen"), value)
	}
	return fmt.Sprintf("%s(%s)", w.fastpb("Size"+f.name), value)
}

// sizeOfElements is the size of all elements of a packed field.
func (w fastWriter) sizeOfElements(f field) string {
	switch f.size {
	case 0:
		return fmt.Sprintf("%s(%s, %s)", w.fastpb("SizeAll"), f.at, w.fastpb("Size"+f.name))
	case 1:
		return fmt.Sprintf("len(%s)", f.at)
	}
	return fmt.Sprintf("%d*len(%s)", f.size, f.at)
}

// elements is how many elements the part p of a packed field has.
func (w fastWriter) elements(f field) string {
	switch f.size {
	case 0:
		return w.fastpb("Varints") + "(p)"
	case 1:
		return "len(p)"
	}
	return fmt.Sprintf("len(p)/%d", f.size)
}

// taker is the function that decodes a value.
func (w fastWriter) taker(f field) string {
	if f.name == "Bytes" && (f.desc.IsList() || f.desc.HasPresence()) {
		return "PresentBytes"
	}
	return f.name
}

// target is where a value is decoded to.
func (w fastWriter) target(f field) string {
	at := "&" + f.at
	if f.desc.IsList() {
		at = fmt.Sprintf("%s(%s)", w.fastpb("Next"), at)
	}
	if f.name == "Message" || f.pointer() {
		at = fmt.Sprintf("%s(%s)", w.fastpb("Present"), at)
	}
	return at
}
