package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/verbena-rpc/verbena/bench/internal/results"
)

// maxFile bounds a file that is read, in bytes: a run of a hundred rounds has
// less than a tenth.
const maxFile = 64 << 20

// file is what one benchmark wrote; one of the pointers is set.
type file struct {
	name string
	results.Header
	run      *report
	peers    *results.PeersFile
	connect  *connectReport
	failover *failoverReport
	scale    *scaleReport
}

func readFile(path string) (*file, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was read only
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s has more than %d MiB, expected a result of a benchmark", path, maxFile>>20)
	}
	read := &file{name: filepath.Base(path)}
	if err := json.Unmarshal(b, &read.Header); err != nil {
		return nil, fmt.Errorf("%s: expected a result of a benchmark: %w", path, err)
	}
	var into any
	switch read.Benchmark {
	case results.Run:
		read.run = &report{}
		into = read.run
	case results.Peers:
		read.peers = &results.PeersFile{}
		into = read.peers
	case results.Connect:
		read.connect = &connectReport{}
		into = read.connect
	case results.Failover:
		read.failover = &failoverReport{}
		into = read.failover
	case results.Scale:
		read.scale = &scaleReport{}
		into = read.scale
	default:
		return nil, fmt.Errorf("%s: \"benchmark\" is %q, expected %s, %s, %s, %s or %s", path, read.Benchmark,
			results.Run, results.Peers, results.Connect, results.Failover, results.Scale)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return read, nil
}

// series is a cell and the name of what was measured in it.
type series struct {
	name string
	results.Cell
}

// series of a run, or of peers.
func (f *file) series() (all []series) {
	switch {
	case f.run != nil:
		for _, r := range f.run.Rows {
			all = append(all, series{r.Transport + ", " + r.Codec, r.Cell})
		}
	case f.peers != nil:
		for _, r := range f.peers.Rows {
			all = append(all, series{r.Peer, r.Cell})
		}
	}
	return all
}

// parseFiles reads flags and, before, between and after them, names of files.
func parseFiles(fs *flag.FlagSet, args []string) (files []string, err error) {
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, errUsage
		}
		if args = fs.Args(); len(args) > 0 {
			files, args = append(files, args[0]), args[1:]
		}
	}
	return files, nil
}
