package blockfile

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// A file begins with two superblocks, each at the start of a page of its own,
// written in turn, so that a torn write leaves one. Then come records, one
// behind the other. All integers are little-endian; every sum is XXH64.
//
//	superblock                       record
//	 0  8  "VRBLOCKS"                 0  4  "BLK1"
//	 8  4  version, 1                 4  4  kind: 1 put, 2 delete
//	12  4  0                          8  8  id of the block
//	16  8  sequence                  16  8  length of the data; 0 for delete
//	24  8  durable                   24  8  sum of the data
//	32  8  sum of bytes 0..31        32  8  sum of bytes 0..31
//	                                 40     data
//
// The superblock with the higher sequence counts. Every byte before its
// durable offset was on the disk when it was written: what is wrong there is
// corruption. Beyond it lies at most one commit, which a crash may have torn.
const (
	pageSize     = 4096
	firstRecord  = 2 * pageSize
	superSize    = 40
	recordHeader = 40
	version      = 1
)

var (
	superMagic  = []byte("VRBLOCKS")
	recordMagic = []byte("BLK1")
)

type recordKind uint32

const (
	putRecord    recordKind = 1
	deleteRecord recordKind = 2
)

type superblock struct {
	seq     uint64
	durable int64
}

// offset is where the superblock belongs.
func (s superblock) offset() int64 { return int64(s.seq%2) * pageSize }

func (s superblock) encode() []byte {
	b := make([]byte, 0, superSize)
	b = append(b, superMagic...)
	b = binary.LittleEndian.AppendUint64(b, version)
	b = binary.LittleEndian.AppendUint64(b, s.seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.durable))
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

// decodeSuper reads a superblock of superSize bytes.
func decodeSuper(b []byte) (superblock, bool) {
	le := binary.LittleEndian
	s := superblock{seq: le.Uint64(b[16:]), durable: int64(le.Uint64(b[24:]))}
	ok := bytes.Equal(b[:8], superMagic) && le.Uint64(b[8:]) == version &&
		le.Uint64(b[32:]) == xxhash.Sum64(b[:32]) && s.durable >= firstRecord
	return s, ok
}

type record struct {
	kind   recordKind
	id     uint64
	length int64 // bytes of data
	sum    uint64
}

// size is that of the whole record in the file, in bytes.
func (r record) size() int64 { return recordHeader + r.length }

func (r record) append(b []byte) []byte {
	start := len(b)
	b = append(b, recordMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.kind))
	b = binary.LittleEndian.AppendUint64(b, r.id)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.length))
	b = binary.LittleEndian.AppendUint64(b, r.sum)
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b[start:]))
}

// decodeRecord reads a record header of recordHeader bytes. The data of a
// record that is right is at most limit bytes long.
func decodeRecord(b []byte, limit int64) (record, bool) {
	le := binary.LittleEndian
	r := record{
		kind: recordKind(le.Uint32(b[4:])), id: le.Uint64(b[8:]),
		length: int64(le.Uint64(b[16:])), sum: le.Uint64(b[24:]),
	}
	ok := bytes.Equal(b[:4], recordMagic) && le.Uint64(b[32:]) == xxhash.Sum64(b[:32]) &&
		r.length >= 0 && r.length <= limit &&
		(r.kind == putRecord || r.kind == deleteRecord && r.length == 0)
	return r, ok
}
