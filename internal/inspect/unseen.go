package inspect

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/trace"
)

// unseen refuses recordings to learn from that have a record of the one to predict,
// whatever their names and in whatever order.
func unseen(fits []*trace.Trace, predict *trace.Trace) error {
	seen := map[[sha256.Size]byte]int{}
	for i := range predict.Records {
		if print, ok := timesPrint(&predict.Records[i]); ok {
			seen[print] = i
		}
	}
	for _, t := range fits {
		shared, first, at := 0, 0, 0
		for i := range t.Records {
			print, ok := timesPrint(&t.Records[i])
			if !ok {
				continue
			}
			if at2, ok := seen[print]; ok {
				if shared == 0 {
					first, at = i, at2
				}
				shared++
			}
		}
		if shared > 0 {
			return fmt.Errorf("%s has %d records of %s, the first is %s and %s: never learn from what is predicted, "+
				"give a recording of another load", t.Name, shared, predict.Name, place(t, first), place(predict, at))
		}
	}
	return nil
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

func place(t *trace.Trace, i int) string {
	if line := t.Records[i].Line; line > 0 {
		return fmt.Sprintf("%s:%d", t.Name, line)
	}
	return fmt.Sprintf("record %d of %s", i, t.Name)
}
