package results

// PeersFile is what bench/peers writes.
type PeersFile struct {
	Header
	Rows      []PeerRow       `json:"rows"`
	Compared  []PeerRatios    `json:"ratios"`
	Elsewhere []ElsewhereCell `json:"elsewhere"`
	Missed    []string        `json:"missed,omitempty"` // gates of -check, after all tries
	Tries     []string        `json:"tries,omitempty"`  // what -check measured again
}

// PeerRow is one cell of one library.
type PeerRow struct {
	Peer    string `json:"peer"`
	Role    string `json:"role"`
	Version string `json:"version,omitempty"`
	Note    string `json:"note,omitempty"`
	Cell
}

// Roles of a peer.
const (
	RolePeer  = "peer"
	RoleBound = "bound" // what the sockets allow
	RoleOurs  = "ours"
)

// PeerRatios compares what one cell showed.
type PeerRatios struct {
	Size    int    `json:"size_bytes"`
	Callers int    `json:"callers"`
	Best    string `json:"best_peer,omitempty"` // the one with the most calls/s
	Ours    string `json:"ours"`

	ToBest  float64 `json:"calls_to_best_peer,omitempty"`
	ToBound float64 `json:"calls_to_bound,omitempty"`
	// P99 is ours in that of the peer with the lowest.
	P99 float64 `json:"p99_to_lowest_peer,omitempty"`
}

// Ratios compares each of ours with the peers and the bound of its cell. What
// was not measured has the ratio 0.
func (f *PeersFile) Ratios() (ratios []PeerRatios) {
	for _, ours := range f.Rows {
		if ours.Role != RoleOurs {
			continue
		}
		r := PeerRatios{Size: ours.Size, Callers: ours.Callers, Ours: ours.Peer}
		var best, lowest float64
		for _, row := range f.Rows {
			switch {
			case row.Size != ours.Size || row.Callers != ours.Callers:
			case row.Role == RoleBound:
				r.ToBound = ours.CallsPerSec / row.CallsPerSec
			case row.Role == RolePeer:
				if row.CallsPerSec > best {
					best, r.Best = row.CallsPerSec, row.Peer
				}
				if lowest == 0 || row.P99 < lowest {
					lowest = row.P99
				}
			}
		}
		if best > 0 {
			r.ToBest, r.P99 = ours.CallsPerSec/best, ours.P99/lowest
		}
		ratios = append(ratios, r)
	}
	return ratios
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
