package inspect

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/trace"
)

// unseen refuses recordings to learn from that have a record of those to predict, and recordings to
// predict that have a record of each other, whatever their names and in whatever order.
func unseen(fits, predicts []*trace.Trace) error {
	seen := map[[sha256.Size]byte]origin{}
	for _, t := range predicts {
		if s := sharedWith(t, seen); s != nil {
			return fmt.Errorf("%w: predict every recording once", s)
		}
		for i := range t.Records {
			if print, ok := timesPrint(&t.Records[i]); ok {
				seen[print] = origin{t, i}
			}
		}
	}
	for _, t := range fits {
		if s := sharedWith(t, seen); s != nil {
			return fmt.Errorf("%w: never learn from what is predicted, give a recording of another load", s)
		}
	}
	return nil
}

// origin is a record of a recording.
type origin struct {
	trace *trace.Trace
	index int
}

func (o origin) String() string {
	if line := o.trace.Records[o.index].Line; line > 0 {
		return fmt.Sprintf("%s:%d", o.trace.Name, line)
	}
	return fmt.Sprintf("record %d of %s", o.index, o.trace.Name)
}

// sharedWith tells which records of a recording were seen in others, nil if none.
func sharedWith(t *trace.Trace, seen map[[sha256.Size]byte]origin) error {
	shared := 0
	var here, there origin
	for i := range t.Records {
		print, ok := timesPrint(&t.Records[i])
		if !ok {
			continue
		}
		if from, ok := seen[print]; ok {
			if shared == 0 {
				here, there = origin{t, i}, from
			}
			shared++
		}
	}
	if shared == 0 {
		return nil
	}
	return fmt.Errorf("%s has %d records of %s, the first is %s and %s", t.Name, shared, there.trace.Name, here, there)
}

// timesPrint tells a record by its recorded times, which never come twice. One of a single
// gap or none is told apart from no other.
func timesPrint(r *trace.Record) (print [sha256.Size]byte, ok bool) {
	if len(r.ITLMs) < 2 {
		return print, false
	}
	var b []byte
	for _, ms := range append([]float64{r.TTFTMs}, r.ITLMs...) {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(ms))
	}
	return sha256.Sum256(b), true
}
