package codec_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-rpc/verbena/codec/internal/testpb"
)

// wire is what a decoder is given: numbers are varints, the rest is as it is.
func wire(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = protowire.AppendVarint(b, uint64(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

// decodings are what is easily got wrong; the fuzzer starts with them.
var decodings = map[string]struct {
	src   []byte
	valid bool
}{
	"nothing":                        {nil, true},
	"last of two scalars":            {wire(2<<3, 1, 2<<3, 2), true},
	"last of two is zero":            {wire(2<<3, 1, 2<<3, 0), true},
	"message in two pieces":          {wire(17<<3|2, 3, 1<<3|2, 1, "n", 17<<3|2, 4, 3<<3|2, 2, 1<<3, 9), true},
	"optional message, piecewise":    {wire(17<<3|2, 4, 3<<3|2, 2, 1<<3, 9, 17<<3|2, 5, 3<<3|2, 3, 2<<3|2, 1, "d"), true},
	"packed, declared packed":        {wire(42<<3|2, 3, 1, 2, 3), true},
	"loose, declared packed":         {wire(42<<3, 1, 42<<3, 2), true},
	"packed, declared loose":         {wire(62<<3|2, 3, 1, 2, 3), true},
	"loose, declared loose":          {wire(62<<3, 1, 62<<3, 2), true},
	"packed and loose":               {wire(42<<3, 1, 42<<3|2, 2, 2, 3, 42<<3, 4), true},
	"packed without elements":        {wire(42<<3|2, 0), true},
	"packed, last is cut":            {wire(42<<3|2, 2, 1, "\x80"), false},
	"packed fixed, last is cut":      {wire(49<<3|2, 5, "12345"), false},
	"packed, longer than there is":   {wire(42<<3|2, 1<<40, 1), false},
	"bytes, longer than there is":    {wire(15<<3|2, 1<<40, "d"), false},
	"bytes, length above int":        {wire(15<<3|2, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false},
	"wrong wire type":                {wire(2<<3|2, 1, "n", 14<<3, 7, 42<<3|5, "1234"), true},
	"unknown field":                  {wire(99<<3|2, 1, "n"), true},
	"unknown field, long tag":        {wire("\x98\x86\x80\x00", 1), true},
	"known field, long tag":          {wire("\x90\x80\x80\x00", 1), true},
	"tag above 64 bits":              {wire("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 1), false},
	"tag above 32 bits":              {wire(1<<35|2<<3, 1), false},
	"value above 64 bits":            {wire(2<<3, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), false},
	"value of eleven bytes":          {wire(2<<3, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false},
	"value above 32 bits":            {wire(2<<3, 1<<32|5, 3<<3, 1<<32|5, 4<<3, 1<<32|5, 16<<3, 1<<32|5), true},
	"bool above one":                 {wire(1<<3, 1<<40), true},
	"field 0":                        {wire(0, 1), false},
	"greatest field":                 {wire((1<<29-1)<<3, 1), true},
	"field above the greatest":       {wire(1<<32, 1), false},
	"wire type 6":                    {wire(2<<3|6, 1), false},
	"wire type 7":                    {wire(99<<3|7, 1), false},
	"group":                          {wire(99<<3|3, 1<<3, 1, 99<<3|4), true},
	"group in place of a message":    {wire(17<<3|3, 1<<3, 1, 17<<3|4), true},
	"group without end":              {wire(99<<3|3, 1<<3, 1), false},
	"group with another's end":       {wire(99<<3|3, 98<<3|4), false},
	"group without start":            {wire(99<<3 | 4), false},
	"end of a known field":           {wire(2<<3 | 4), false},
	"message ends in a group":        {wire(17<<3|2, 2, 99<<3|3, 99<<3|4), false},
	"groups in groups":               {bytes.Repeat(wire(99<<3|3), 1<<20), false},
	"groups in groups, that end":     {append(bytes.Repeat(wire(99<<3|3), 9000), bytes.Repeat(wire(99<<3|4), 9000)...), true},
	"groups in groups, too many":     {append(bytes.Repeat(wire(99<<3|3), 11000), bytes.Repeat(wire(99<<3|4), 11000)...), false},
	"string that is not UTF-8":       {wire(14<<3|2, 1, "\xff"), false},
	"string of half a rune":          {wire(14<<3|2, 2, "\xe2\x82"), false},
	"surrogate":                      {wire(14<<3|2, 3, "\xed\xa0\x80"), false},
	"optional string, not UTF-8":     {wire(34<<3|2, 1, "\xff"), false},
	"repeated string, not UTF-8":     {wire(54<<3|2, 1, "\xff"), false},
	"nested string, not UTF-8":       {wire(17<<3|2, 3, 1<<3|2, 1, "\xff"), false},
	"bytes, not UTF-8":               {wire(15<<3|2, 1, "\xff"), true},
	"absent and empty":               {wire(35<<3|2, 0, 34<<3|2, 0, 22<<3, 0, 55<<3|2, 0), true},
	"tag only":                       {wire(2 << 3), false},
	"half of a tag":                  {wire("\x80"), false},
	"length only":                    {wire(15<<3|2, 5), false},
	"fixed, cut":                     {wire(9<<3|5, "123"), false},
	"fixed 64, cut":                  {wire(12<<3|1, "1234567"), false},
	"message, cut within":            {wire(17<<3|2, 2, 1<<3|2, 5), false},
	"unknown field, cut":             {wire(99<<3|2, 5, "1234"), false},
	"negative zero":                  {wire(10<<3|5, "\x00\x00\x00\x80", 13<<3|1, "\x00\x00\x00\x00\x00\x00\x00\x80"), true},
	"unknown between known":          {wire(2<<3, 1, 99<<3, 1, 2<<3, 2, 98<<3, 2), true},
	"unknown fields of a submessage": {wire(17<<3|2, 3, 99<<3, 1, 17<<3|2, 3, 98<<3, 1), true},
}

func TestFastDecodings(t *testing.T) {
	for name, d := range decodings {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, d.valid, proto.Unmarshal(d.src, new(testpb.All)) == nil, "that is what protobuf does")
			agreeOnDecoding(t, d.src)
		})
	}
}

func FuzzFast(f *testing.F) {
	for _, d := range decodings {
		if len(d.src) < 1<<10 {
			f.Add(d.src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) { agreeOnDecoding(t, src) })
}
