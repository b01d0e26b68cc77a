package rdma

// Flush posts what was published. See transport.Link. Where frames come in crowds, the
// first to flush gives way to the others and then posts what all have committed
// meanwhile: with 64 callers on two emulated processors that was 23 % more calls.
func (l *link) Flush() {
	if l.crowd.Here() && (l.send.flushing() || !l.giveWay()) {
		return
	}
	l.flush()
}

// giveWay lets others commit, and says whether it is the caller who flushes.
func (l *link) giveWay() bool {
	if !l.giving.CompareAndSwap(false, true) {
		return false
	}
	l.crowd.GiveWay()
	l.giving.Store(false) // before the flush: who commits from now on flushes
	return true
}

// flushing says that somebody has the flush lock, a poller in its batch perhaps,
// and looks once more when it lets go. To ask is to have the lock for a moment, in
// which others leave: so who is told no must flush, or know who will.
func (r *sendRing) flushing() bool {
	if !r.mu.TryLock() {
		return true
	}
	r.mu.Unlock()
	return false
}
