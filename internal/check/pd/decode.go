package pd

import (
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
)

// Assertions of the suite decode, besides [Handshake].
const (
	Pull         check.Assertion = "pull"
	StaleHash    check.Assertion = "stale-hash"
	Geometry     check.Assertion = "geometry"
	Identity     check.Assertion = "identity"
	Gone         check.Assertion = "prefill-gone"
	Dies         check.Assertion = "prefill-dies"
	Workers      check.Assertion = "two-workers"
	FourPrefills check.Assertion = "four-prefills"
)

// Codes of what the suite decode reports, besides those of the suite prefill.
const (
	CodePull     check.Code = "D009" // a request is not answered although its blocks are there
	CodeAsked    check.Code = "D010" // the engine asks a side channel in another way than the line does
	CodeNotified check.Code = "D011" // the notification after a read is missing or another one
	CodeHangs    check.Code = "D012" // a request whose blocks do not come does not end
	CodeAccepted check.Code = "D013" // blocks are read although the prefill does not fit
	CodeBroken   check.Code = "D014" // after a failed transfer the engine does not go on
)

//go:embed decode.md
var decodeCodes string

// DecodeChecks are those of the suite decode, in their order.
var DecodeChecks = []check.Check{
	{Name: Handshake, Run: judged((*side).checkHandshake)},
	{Name: Pull, Codes: decodeCodes, Run: judged((*side).checkPull)},
	{Name: StaleHash, Run: judged(misfit("its compatibility hash is another one", func(_ *nixl.Metadata, hash *string) {
		*hash = fmt.Sprintf("%064d", 0)
	}))},
	{Name: Geometry, Run: judged(misfit("its blocks have half the bytes", func(m *nixl.Metadata, _ *string) {
		m.BlockLens = slices.Clone(m.BlockLens)
		for i := range m.BlockLens {
			m.BlockLens[i] /= 2
		}
	}))},
	{Name: Identity, Run: judged(misfit("its engine_id is not remote_engine_id", func(m *nixl.Metadata, _ *string) { m.EngineID += "-other" }))},
	{Name: Gone, Run: judged((*side).checkGone)},
	{Name: Dies, Run: judged((*side).checkDies)},
	{Name: Workers, Run: judged((*side).checkWorkers)},
	{Name: FourPrefills, Run: judged((*side).checkFourPrefills)},
}

// checkPull has two prompts pulled, one after the other: with one handshake, into the right blocks, with a notification each.
func (d *side) checkPull() error {
	f, err := d.newPrefill("vcr-prefill", 1, nil)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, first := range []int{1, 11} {
		const blocks = 5
		prompt := d.prompt(d.promptFor(blocks))
		began := time.Now()
		r, request, err := d.pull(f, prompt, first)
		if err == nil {
			err = d.await(r)
		}
		if err == nil {
			err = answered(r)
		}
		if err == nil {
			err = d.notified(f, request)
		}
		if err != nil {
			return err
		}
		d.f.Asserted++
		d.f.AddNote(fmt.Sprintf("%d blocks and 4 tokens in %v", blocks, time.Since(began).Round(time.Millisecond)))
		if err := d.landed(f, prompt, first, blocks); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.asked, []nixl.Rank{{}}) {
		return check.Ends(CodeAsked, "for two requests the engine asked the side channel for the workers %v, want once for {0 0}", f.asked)
	}
	return nil
}

// misfit makes a check of a prefill that an engine must not pull from.
func misfit(why string, change func(m *nixl.Metadata, hash *string)) func(*side) error {
	return func(d *side) error {
		f, err := d.newPrefill("vcr-misfit", 1, change)
		if err != nil {
			return err
		}
		defer f.Close()
		return d.comesToNothing(f, why)
	}
}

// comesToNothing has a prompt pulled from a prefill that cannot give it: the request ends, by an error or with tokens that the engine
// computes itself, as its kv_load_failure_policy says. Then the engine answers others.
func (d *side) comesToNothing(f *prefill, why string) error {
	began := time.Now()
	prompt := d.prompt(d.promptFor(3))
	r, request, err := d.pull(f, prompt, 1)
	if err == nil {
		err = d.await(r)
	}
	if check.CodeOf(err) == check.CodeSilence && d.ctx.Err() == nil {
		return check.Ends(CodeHangs, "a request is to pull from a prefill, and %s: it has not ended within %v", why, time.Since(began).Round(time.Millisecond))
	}
	if err != nil {
		return err
	}
	d.f.Asserted++
	how := "with an error"
	if r.tokens > 0 {
		how = "with tokens that it computed itself"
	}
	d.f.AddNote(fmt.Sprintf("%s: the engine answers %s, after %v", why, how, time.Since(began).Round(time.Millisecond)))
	for _, a := range f.workers {
		select {
		case n, open := <-a.Notifications():
			if got, err := nixl.ParseNotification(n.Text); open && err == nil && got.Request == request {
				return check.Ends(CodeAccepted, "%s, and the engine notifies that it has read the blocks", why)
			}
		default:
		}
	}
	after, err := d.ask(d.prompt(9), 4, nil)
	if err == nil && after.tokens != 4 {
		err = check.Ends(CodeBroken, "%s: the next request, which pulls nothing, has %d of 4 tokens and ended by %s", why, after.tokens, after.finish)
	}
	return err
}

// checkGone names a side channel where nothing listens.
func (d *side) checkGone() error {
	f, err := d.newPrefill("vcr-gone", 1, nil)
	if err != nil {
		return err
	}
	f.Close()
	return d.comesToNothing(f, "nothing listens at its side channel")
}

// checkDies has the agent of a prefill end behind its side channel: before the first read, between two, and in the middle of one.
func (d *side) checkDies() error {
	for i, why := range []string{"its agent died before the first read", "its agent died after 1 read", "its agent dies in the middle of a read"} {
		f, err := d.newPrefill(fmt.Sprintf("vcr-dies-%d", i), 1, nil)
		if err != nil {
			return err
		}
		defer f.Close()
		if i > 0 {
			r, _, err := d.pull(f, d.prompt(d.promptFor(3)), 1)
			if err == nil {
				err = d.await(r)
			}
			if err == nil {
				err = answered(r)
			}
			if err != nil {
				return err
			}
		}
		if i < 2 {
			f.workers[0].Close()
		} else if err := f.workers[0].Misbehave(d.ctx, 0, true); err != nil {
			return check.Infra(err)
		}
		if err := d.comesToNothing(f, why); err != nil {
			return err
		}
	}
	return nil
}

// checkWorkers has a prompt pulled from a prefill with two tensor-parallel workers, of which each has half the heads. An engine whose
// model does not have them refuses that.
func (d *side) checkWorkers() error {
	f, err := d.newPrefill("vcr-two-workers", 2, nil)
	if err != nil {
		return err
	}
	defer f.Close()
	r, request, err := d.pull(f, d.prompt(d.promptFor(3)), 1)
	if err == nil {
		err = d.await(r)
	}
	if err != nil {
		return err
	}
	d.f.Asserted++
	f.mu.Lock()
	asked := slices.Clone(f.asked)
	f.mu.Unlock()
	if len(asked) == 0 || asked[0] != (nixl.Rank{}) || slices.ContainsFunc(asked, func(r nixl.Rank) bool { return r.PP != 0 || r.TP > 1 }) {
		return check.Ends(CodeAsked, "the engine asked a prefill of two workers for %v, want {0 0}, and then {0 1} if it reads from both", asked)
	}
	if r.tokens == 0 {
		d.f.AddNote(fmt.Sprintf("the engine does not pull from two workers: %s", r.finish))
		return nil
	}
	if len(asked) == 1 {
		d.f.AddNote("the engine computed the prompt itself, or reads from one worker")
		return nil
	}
	return d.notified(f, request)
}

// checkFourPrefills has 200 requests pulled from four prefills, 16 at a time.
func (d *side) checkFourPrefills() error {
	const prefills, requests, atOnce, blocks = 4, 200, 16, 3
	var all []*prefill
	for i := range prefills {
		f, err := d.newPrefill(fmt.Sprintf("vcr-four-%d", i), 1, nil)
		if err != nil {
			return err
		}
		defer f.Close()
		all = append(all, f)
	}
	began := time.Now()
	var open []*reply
	wanted := make([]map[string]bool, prefills)
	for i := range requests {
		of := i % prefills
		r, request, err := d.pull(all[of], d.prompt(d.promptFor(blocks)), 1+i%(fakeBlocks-blocks-1))
		if err != nil {
			return err
		}
		if wanted[of] == nil {
			wanted[of] = map[string]bool{}
		}
		wanted[of][request] = true
		if open = append(open, r); len(open) == atOnce || i == requests-1 {
			if err := d.await(open...); err != nil {
				return err
			}
			for _, r := range open {
				d.f.Asserted++
				if err := answered(r); err != nil {
					return err
				}
			}
			open = nil
		}
	}
	d.f.AddNote(fmt.Sprintf("%d requests in %v", requests, time.Since(began).Round(time.Millisecond)))
	for of, f := range all {
		for len(wanted[of]) > 0 {
			select {
			case n := <-f.workers[0].Notifications():
				got, err := nixl.ParseNotification(n.Text)
				if err == nil && got.Heartbeat == nil && !wanted[of][got.Request] {
					err = fmt.Errorf("it is of no request that was open")
				}
				if err != nil {
					return check.Ends(CodeNotified, "%q: %v", n.Text, err)
				}
				delete(wanted[of], got.Request)
			case <-time.After(d.within(releaseLimit)):
				return check.Ends(CodeNotified, "of %s of prefill %d came no notification", safetext.Count(len(wanted[of]), "request"), of)
			case <-d.ctx.Done():
				return d.ctx.Err()
			}
		}
	}
	return nil
}
