package results

// PeersFile is what bench/peers writes.
type PeersFile struct {
	Header
	Rows      []PeerRow       `json:"rows"`
	Elsewhere []ElsewhereCell `json:"elsewhere"`
	Missed    []string        `json:"missed,omitempty"` // gates of -check, after all tries
	Tries     []string        `json:"tries,omitempty"`  // what -check measured again
}

// PeerRow is one cell of one library.
type PeerRow struct {
	Peer    string `json:"peer"`
	Version string `json:"version,omitempty"`
	Note    string `json:"note,omitempty"`
	Cell
}

// Find is nil where there is no such row.
func (f *PeersFile) Find(peer string, size, callers int) *PeerRow {
	for i := range f.Rows {
		if r := &f.Rows[i]; r.Peer == peer && r.Size == size && r.Callers == callers {
			return r
		}
	}
	return nil
}

// ElsewhereCell has figures of another machine and run, for peers that could
// not be measured here: only their ratio to the bound of the same run counts.
type ElsewhereCell struct {
	Size    int     `json:"size_bytes"`
	Callers int     `json:"callers"`
	Bound   float64 `json:"bound_calls_per_second"`
	Best    float64 `json:"best_calls_per_second"` // of all Go RPC libraries measured there
	Peer    string  `json:"peer"`
}

// Share of the bound that the best peer had.
func (c *ElsewhereCell) Share() float64 { return c.Best / c.Bound }
