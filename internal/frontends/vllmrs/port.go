package vllmrs

// A Port is a TCP port of 127.0.0.1 that is kept for a server that is yet to start.
// On Linux nobody else is given it, and the server may listen on it all the same if
// it allows the reuse of addresses, as servers do; elsewhere it was free a moment ago.
type Port struct{ port *port }

// Reserve takes a port. The caller releases it when the server is gone.
func Reserve() (Port, error) {
	p, err := reserve()
	return Port{p}, err
}

// Number returns the number of the port.
func (p Port) Number() int { return p.port.number }

// Release gives the port back.
func (p Port) Release() { p.port.release() }
