package main

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/gofeaturespb"
)

// fastMethods are the methods that are generated for plain messages.
var fastMethods = []string{"SizeVerbena", "MarshalVerbena", "UnmarshalVerbena", "MergeVerbena"}

// obstacles says of messages why they are not plain, that is, have no methods
// of their own for encoding and decoding; "" if they are and have.
type obstacles map[*protogen.Message]string

// of looks into all messages that m may contain. Those that are being looked
// into count as not plain meanwhile: what leads back to them is a cycle.
func (o obstacles) of(m *protogen.Message) string {
	why, ok := o[m]
	if !ok {
		o[m] = "it contains what it is in"
		why = o.find(m)
		o[m] = why
	}
	return why
}

func (o obstacles) find(m *protogen.Message) string {
	switch {
	case m.APILevel != gofeaturespb.GoFeatures_API_OPEN:
		return "its fields may be hidden"
	case m.Desc.ExtensionRanges().Len() > 0:
		return "it can be extended"
	}
	for _, f := range m.Fields {
		if why := o.inField(m, f); why != "" {
			return fmt.Sprintf("field %s%s", f.Desc.Name(), why)
		}
	}
	return ""
}

func (o obstacles) inField(m *protogen.Message, f *protogen.Field) string {
	switch {
	case slices.Contains(fastMethods, f.GoName):
		return " has the name of a method"
	case f.Desc.IsMap():
		return " is a map"
	case f.Oneof != nil && !f.Oneof.Desc.IsSynthetic():
		return " is in a oneof"
	case f.Desc.Kind() == protoreflect.GroupKind:
		return " is a group"
	case f.Desc.Cardinality() == protoreflect.Required:
		return " is required"
	case f.Message == nil:
		return ""
	case f.Message.Desc.ParentFile() != m.Desc.ParentFile():
		return fmt.Sprintf(" is a %s, of another file", f.Message.Desc.FullName())
	}
	if why := o.of(f.Message); why != "" {
		return ": " + why
	}
	return ""
}
