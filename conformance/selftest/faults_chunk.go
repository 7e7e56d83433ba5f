package selftest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
)

// chunkFaults give the right tokens in wrong pieces.
func chunkFaults(s *scene) []Fault {
	at, _ := s.target.chunkAt(s.target.middle())
	merged := s.target.chunks[at]
	if at+1 < len(s.target.chunks) {
		merged += s.target.chunks[at+1]
	}
	return []Fault{
		{
			Name: "one-chunk", Says: "all tokens of a stream come at once",
			red:  only(conformance.Fidelity, s.sizes(0, len(s.target.tokens))),
			wire: mergeChunks(0, len(s.target.chunks)),
		},
		{
			Name: "merged-chunks", Says: "two chunks of a stream come as one",
			red:  only(conformance.Fidelity, s.sizes(at, merged)),
			wire: mergeChunks(at, at+2),
		},
		{
			Name: "split-chunk", Says: "a chunk of several tokens comes as two",
			red:  only(conformance.Fidelity, s.sizes(max(s.target.splittable(), 0), 1)),
			fits: func(t *target) bool { return t.splittable() >= 0 },
			wire: splitChunk,
		},
	}
}

// sizes is what is wanted when a chunk of the target has another size.
func (s *scene) sizes(chunk, got int) want {
	w := about(replay.CodeChunks, s.target.index, chunk)
	w.says = append(w.says, fmt.Sprintf("chunk %d differs", chunk))
	if chunk < len(s.target.chunks) {
		w = w.compares(strconv.Itoa(s.target.chunks[chunk]), strconv.Itoa(got))
	}
	return w
}

// mergeChunks keeps the tokens of chunks back until the last of them comes.
func mergeChunks(from, to int) func(*scene) tamper {
	return func(s *scene) tamper {
		var kept []*node
		return s.hit(func(o *spoken) {
			switch last := min(to, len(s.target.chunks)) - 1; {
			case from <= o.chunk && o.chunk < last:
				kept, o.tokens.items = append(kept, o.tokens.items...), nil
			case o.chunk == last:
				o.tokens.items, kept = append(slices.Clone(kept), o.tokens.items...), nil
			}
		})
	}
}

// splitChunk sends the first token of a chunk before the others.
func splitChunk(s *scene) tamper {
	return s.hit(func(o *spoken) {
		if o.chunk != s.target.splittable() {
			return
		}
		items := slices.Clone(o.node().items)
		items[1] = array(o.tokens.items[0])
		o.before = append(o.before, o.alone(array(items...)))
		o.tokens.items = o.tokens.items[1:]
	})
}

// otherRequestFaults give a request what belongs to another, or to none.
func otherRequestFaults(s *scene) []Fault {
	const stranger = "replay-999999"
	stray := nowhere(check.CodeStray, "never sent")
	stray = stray.in("request_id").compares("sent", stranger)
	talk := about(replay.CodeToken, s.target.previous, anywhere)
	talk.says = append(talk.says, " differs: expected ")
	return []Fault{
		{
			Name: "another-record", Says: "a request is answered with the next one's recording",
			red: only(conformance.Fidelity, s.differs(s.target.next)), wire: anotherRecord,
		},
		{
			Name: "cross-talk", Says: "an output of a request goes to the one before it",
			red:  only(conformance.Fidelity, talk),
			wire: inMiddle(func(o *spoken) { o.node().items[0] = text(id(o.scene.target.previous)) }),
		},
		{
			Name: "unknown-id", Says: "an output names a request that was never sent",
			red: only(conformance.Fidelity, stray),
			wire: inMiddle(func(o *spoken) {
				stray := o.copy(otherToken)
				stray.items[0] = text(stranger)
				o.after = append(o.after, o.alone(stray))
			}),
		},
	}
}

// anotherRecord says the tokens of the next stream in as many outputs.
func anotherRecord(s *scene) tamper {
	return s.hit(func(o *spoken) {
		other := s.target.next
		from, to := min(o.first, len(other)), min(o.first+len(o.tokens.items), len(other))
		if o.terminal() {
			to = len(other)
		}
		o.tokens.items = numbers(other[from:to]).items
	})
}
