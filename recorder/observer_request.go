package recorder

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// request is what is remembered of a request in flight, in storage that the next
// request takes over. The fields that every chunk touches are together at the beginning.
type request struct {
	id       string
	live     bool   // between its ADD and its end
	remote   bool   // its prefill ran in another engine
	session  bool   // more input may follow under the same id
	refusals int    // answers to duplicates that are still to come
	last     moment // of the last chunk
	chunks   int
	gaps     []gap    // between the chunks
	tokens   []uint32 // of all chunks, if they are recorded
	count    int      // of the tokens

	client  int
	arrival time.Duration
	first   moment       // of the first chunk
	era     int          // of the engine's clock at the first chunk
	prefill uint64       // the step in which its first token counted as prefill
	rec     trace.Record // what is known of it at its arrival, and CachedTokens
	stop    []byte       // stop_reason in JSON
	extra   requestExtra
}

// gap is what a chunk after the first adds to a record.
type gap struct {
	wait   time.Duration // since the chunk before it, on the tap's clock
	own    time.Duration // likewise, on the engine's
	tokens uint32        // in the chunk
	step                 // that brought it
}

// requestExtra is what a record has of a request beyond the common keys.
type requestExtra struct {
	sampling []byte // JSON object, empty if all is default
	lora     string
	salt     string
	priority int
}

const (
	// maxKept is how many requests are kept for reuse.
	maxKept = 1024
	// keptGaps is the most gaps that there is kept storage for.
	keptGaps = 16 << 10
)

// takeRequest returns an empty request.
func (o *Observer) takeRequest() *request {
	n := len(o.spare)
	if n == 0 {
		return new(request)
	}
	q := o.spare[n-1]
	o.spare = o.spare[:n-1]
	return q
}

// release keeps the storage of an ended request.
func (o *Observer) release(q *request) {
	if len(o.spare) >= maxKept || cap(q.gaps) > keptGaps || cap(q.rec.PromptTokenIDs) > 4*keptGaps {
		return
	}
	*q = request{
		gaps: q.gaps[:0], tokens: q.tokens[:0], stop: q.stop[:0],
		rec:   trace.Record{BlockHashes: q.rec.BlockHashes[:0], PromptTokenIDs: q.rec.PromptTokenIDs[:0]},
		extra: requestExtra{sampling: q.extra.sampling[:0]},
	}
	o.spare = append(o.spare, q)
}

// add takes an ADD. One with the id of a request in flight changes nothing: the
// engine refuses it, with an error and no tokens under the same id, and goes on
// with the first (vllm/v1/engine, read at 0.33.0). Only a streaming session takes
// it, as more input; of a session the parts that do not overlap are recorded.
func (o *Observer) add(ev *Event) {
	r := &o.in
	if err := o.codec.DecodeRequest(ev.Frames[1], r); err != nil {
		o.undecodable(ev, "an ADD", err)
		return
	}
	o.startClock()
	if first := o.tracked[r.ID]; first != nil {
		o.counts.Duplicates.Add(1)
		if !first.session && !r.Resumable {
			first.refusals++
		}
		o.warn(ev, "a second ADD with the id of a request in flight", nil, "request", r.ID)
		return
	}
	o.counts.Requests.Add(1)
	if r.AbortImmediately {
		// Nothing runs and nothing is answered: the id only frees what another
		// engine holds.
		o.counts.Aborted.Add(1)
		o.counts.Unrecorded.Add(1)
		o.finished.add(r.ID)
		return
	}
	o.counts.InFlight.Add(1)
	q := o.takeRequest()
	o.fill(q, r)
	o.tracked[q.id] = q
}

// fill starts the record of a request that arrived now.
func (o *Observer) fill(q *request, r *protocol.Request) {
	q.id, q.live, q.client, q.arrival, q.session = r.ID, true, r.ClientIndex, o.now, r.Resumable
	rec := &q.rec
	rec.PromptTokens = len(r.PromptTokenIDs)
	rec.Concurrency = uint64(len(o.tracked)) + 1
	rec.BlockHashes = trace.AppendBlockHashes(rec.BlockHashes, r.PromptTokenIDs, o.opt.BlockSize)
	rec.MMHashes = protocol.FeatureHashes(r.MMFeatures)
	for i, hash := range rec.MMHashes {
		rec.MMHashes[i] = validText(hash)
	}
	q.remote = remotePrefill(r.Sampling.ExtraArgs)
	q.extra.priority = r.Priority
	if r.HasSampling {
		q.extra.sampling = o.sampling.append(q.extra.sampling, r.Sampling.Raw)
	}
	if r.LoRA != nil {
		q.extra.lora = r.LoRA.Name
	}
	if o.opt.RecordPrompts {
		q.extra.salt = r.CacheSalt
		rec.PromptTokenIDs = append(rec.PromptTokenIDs, r.PromptTokenIDs...)
	}
}

// abort takes an ABORT, of a frontend that has found a stop string or whose client has
// left: on the wire there is no difference.
func (o *Observer) abort(ev *Event) {
	ids, err := protocol.DecodeAbort(ev.Frames[1])
	if err != nil {
		o.undecodable(ev, "an ABORT", err)
		return
	}
	for _, id := range ids {
		if q := o.tracked[id]; q != nil {
			o.endAborted(q, true)
		}
	}
}

// remotePrefill reports whether another engine has filled the request's KV blocks
// (extra_args.kv_transfer_params.do_remote_prefill).
func remotePrefill(extraArgs []byte) bool {
	cur := pack.NewCursor(mapValue(mapValue(extraArgs, "kv_transfer_params"), "do_remote_prefill"))
	remote, err := cur.Bool()
	return err == nil && remote
}

// mapValue returns the value of a key of a msgpack map, nil if there is none.
func mapValue(raw []byte, key string) []byte {
	cur := pack.NewCursor(raw)
	n, err := cur.MapLen()
	for i := 0; i < n && err == nil; i++ {
		var name, value []byte
		if name, err = cur.Raw(); err != nil {
			break
		}
		if value, err = cur.Raw(); err != nil {
			break
		}
		text := pack.NewCursor(name)
		if got, err := text.Str(); err == nil && string(got) == key {
			return value
		}
	}
	return nil
}

// mapCount returns the count under a key of a msgpack map. What no count can be
// is as good as absent.
func mapCount(raw []byte, key string) (int, bool) {
	const most = 1 << 40
	cur := pack.NewCursor(mapValue(raw, key))
	n, err := cur.Int()
	if err != nil || n < 0 || n > most {
		return 0, false
	}
	return int(n), true
}

// finishedIDs remembers the last requests that ended, to tell an output that
// comes late from one for an unknown request.
type finishedIDs struct{ recent, older map[string]bool }

// maxFinished is how many are remembered at least; twice as many are the most.
const maxFinished = 4096

func (f *finishedIDs) add(id string) {
	if f.recent == nil || len(f.recent) == maxFinished {
		f.recent, f.older = map[string]bool{}, f.recent
	}
	f.recent[id] = true
}

func (f *finishedIDs) has(id []byte) bool { return f.recent[string(id)] || f.older[string(id)] }
