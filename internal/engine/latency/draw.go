package latency

import "math"

// A purpose keeps the draws of one request apart.
type purpose uint64

const (
	drawDonor purpose = iota + 1
	drawStep
	drawSize
	drawFirst
	drawTransfer
	drawLength
	drawAccept
	drawPause
)

// keyOf hashes a seed and an id (FNV-1a, then mixed).
func keyOf(seed uint64, id string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range 8 {
		h = (h ^ seed>>(8*i)&0xff) * 0x100000001b3
	}
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 0x100000001b3
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: every bit of x decides every bit of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// uniform is the request's number in [0, 1) for a purpose and a position, such as
// the context it decodes at.
func (r *Request) uniform(p purpose, position int) float64 {
	const golden = 0x9e3779b97f4a7c15
	x := mix(r.key + golden*uint64(p))
	return float64(mix(x+golden*uint64(position+1))>>11) / (1 << 53)
}

// normal is the request's standard normal number for a purpose and a position (Box
// and Muller).
func (r *Request) normal(p purpose, position int) float64 {
	u1 := 1 - r.uniform(p, 2*position) // in (0, 1]
	u2 := r.uniform(p, 2*position+1)
	return math.Sqrt(-2*math.Log(u1)) * math.Cos(2*math.Pi*u2)
}
