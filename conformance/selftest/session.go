package selftest

import (
	"context"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/manifest"
)

// session is a golden of recorded frames, in which faults change messages.
type session struct {
	stored
	cases []conformance.Case
}

// session is the first golden of recorded frames of a line, the zero session if the line has none.
func (st *stage) session(ctx context.Context, line compat.Line) (session, error) {
	goldens := st.cfg.ofRole(line, manifest.Wire)
	if len(goldens) == 0 {
		return session{}, nil
	}
	recorded := stored{golden: goldens[0]}
	var err error
	if recorded.data, recorded.location, err = st.cfg.Store.Fetch(ctx, goldens[0]); err != nil {
		return session{}, err
	}
	cases, err := st.plan(line, goldens[0])
	return session{recorded, cases}, err
}
