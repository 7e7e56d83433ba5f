package pd

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Assertions of the suite prefill. The suite decode begins with the same handshake.
const (
	Handshake  check.Assertion = "handshake"
	Params     check.Assertion = "params"
	Read       check.Assertion = "read"
	Release    check.Assertion = "release"
	TwoReaders check.Assertion = "two-decodes"
	Death      check.Assertion = "decode-dies"
	Lease      check.Assertion = "lease"
)

// Codes of what the suite prefill reports.
const (
	CodeSideChannel check.Code = "D001" // the side channel does not answer as the line does
	CodeMetadata    check.Code = "D002" // the metadata does not describe memory that can be read
	CodeHash        check.Code = "D003" // the compatibility hash is none, or not always the same
	CodeParams      check.Code = "D004" // kv_transfer_params are not those of the line
	CodeRead        check.Code = "D005" // blocks cannot be read
	CodeContent     check.Code = "D006" // blocks have other contents than they must
	CodeRelease     check.Code = "D007" // a notification does not free the blocks, or one that must not does
	CodeLease       check.Code = "D008" // a lease ends too early, or never
)

//go:embed prefill.md
var prefillCodes string

// PrefillChecks are those of the suite prefill, in their order: what takes longest comes last.
var PrefillChecks = []check.Check{
	{Name: Handshake, Codes: prefillCodes, Run: judged((*side).checkHandshake)},
	{Name: Params, Run: judged((*side).checkParams)},
	{Name: Read, Run: judged((*side).checkRead)},
	{Name: Release, Run: judged((*side).checkRelease)},
	{Name: TwoReaders, Run: judged((*side).checkTwoReaders)},
	{Name: Death, Run: judged((*side).checkDeath)},
	{Name: Lease, Run: judged((*side).checkLease)},
}

// checkHandshake asks twice for the metadata of the first worker. A worker that there is not is not asked for: vLLM up to 0.33 ends
// its side channel by that.
func (d *side) checkHandshake() error {
	again, err := d.shake()
	if err != nil {
		return check.Ends(CodeSideChannel, "the second time: %v", err)
	}
	d.f.Asserted++
	d.f.AddNote(fmt.Sprintf("handshake in %v, %d regions of %s", again.Took.Round(100*time.Microsecond), len(d.metadata.BaseAddresses), safetext.Count(d.metadata.Blocks, "block")))
	switch hash := d.answer.Hash; {
	case len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "":
		return check.Ends(CodeHash, "compatibility_hash is %q: want a SHA-256 in hexadecimal", safetext.Line(hash))
	case again.Hash != hash:
		return check.Ends(CodeHash, "compatibility_hash is %s, and the second time %s", hash, again.Hash)
	case again.Clock < d.answer.Clock:
		return check.Ends(CodeSideChannel, "the clock of the second answer is %v, that of the first %v", again.Clock, d.answer.Clock)
	}
	return nil
}

// checkParams compares the kv_transfer_params of an answer with the keys of the line, and with the request.
func (d *side) checkParams() error {
	const blocks = 3
	k, err := d.keep(d.prompt(d.promptFor(blocks)))
	if err != nil {
		return err
	}
	d.f.Asserted++
	declared := d.nixl.Messages["kv_transfer_params"].Keys
	for _, key := range declared {
		if !key.Optional && !slices.Contains(k.fields, key.Name) {
			d.f.Fail(check.Failed(CodeParams, "kv_transfer_params have no %s, which vLLM %s has", key.Name, d.nixl.Name))
		}
	}
	for _, name := range k.fields {
		if !slices.ContainsFunc(declared, func(key protocol.Key) bool { return key.Name == name }) {
			d.f.Fail(check.Failed(CodeParams, "kv_transfer_params have %s, which vLLM %s does not have", safetext.Line(name), d.nixl.Name))
		}
	}
	if k.EngineID != d.metadata.EngineID {
		d.f.Fail(check.Failed(CodeParams, "remote_engine_id is not the engine_id of the handshake").Compared(d.metadata.EngineID, k.EngineID))
	}
	if k.RequestID != k.reply.id {
		d.f.Fail(check.Failed(CodeParams, "remote_request_id is not the id of the request").Compared(k.reply.id, k.RequestID))
	}
	if want := d.promptFor(blocks); k.tokens != want || len(k.Blocks) != blocks {
		d.f.Fail(check.Failed(CodeParams, "a prompt of %d tokens has %d computed tokens in %s, want all in %d", want, k.tokens, safetext.Count(len(k.Blocks), "block"), blocks))
	}
	return d.ours.notify(d.ctx, k, 1)
}

// checkRead reads a prompt twice, computed anew in between: the blocks have the same contents, and no two of one prompt do.
func (d *side) checkRead() error {
	const blocks = 5
	prompt := d.prompt(d.promptFor(blocks))
	var first []byte
	for round := range 2 {
		k, err := d.keep(prompt)
		if err != nil {
			return err
		}
		began := time.Now()
		got, err := d.ours.read(d.ctx, k, 1)
		if err != nil {
			return err
		}
		d.f.Asserted++
		if round == 0 {
			d.f.AddNote(fmt.Sprintf("%d bytes in %v", len(got), time.Since(began).Round(100*time.Microsecond)))
			if err := d.distinct(got, blocks); err != nil {
				return err
			}
			first = got
			if err := d.forgetCache(); err != nil {
				return err
			}
			continue
		}
		if wrongBlocks := differing(first, got, blocks); wrongBlocks != 0 {
			return check.Ends(CodeContent, "the same prompt was computed twice, and %d of %d blocks differ", wrongBlocks, blocks)
		}
	}
	return nil
}

// distinct wants blocks that are not empty and not the same. The end of the last one is not computed.
func (d *side) distinct(p []byte, blocks int) error {
	size := len(p) / blocks
	seen := map[string]int{}
	for i := range blocks {
		block := string(p[i*size : (i+1)*size])
		if strings.Trim(block, "\x00") == "" {
			return check.Ends(CodeContent, "block %d of %d is all zeros: it was not computed, or is not at the address of the metadata", i, blocks)
		}
		if other, has := seen[block]; has {
			return check.Ends(CodeContent, "blocks %d and %d of a prompt without repetition are the same", other, i)
		}
		seen[block] = i
	}
	return nil
}

// differing counts blocks whose contents differ.
func differing(a, b []byte, blocks int) int {
	if len(a) != len(b) {
		return blocks
	}
	n, size := 0, len(a)/blocks
	for i := range blocks {
		if string(a[i*size:(i+1)*size]) != string(b[i*size:(i+1)*size]) {
			n++
		}
	}
	return n
}

// releaseLimit is how long an engine may take to see a notification, while it makes steps.
const releaseLimit = 20 * time.Second

// within is a limit, or less where the engine is given little time altogether.
func (d *side) within(limit time.Duration) time.Duration { return min(limit, 4*d.s.Limits.Idle) }

// idle waits until the engine keeps no block of an earlier case.
func (d *side) idle() error {
	_, err := d.awaitInUse(0, d.within(releaseLimit), CodeRelease, "all prompts of earlier cases were read")
	return err
}

// checkRelease ends a lease by the notification of a read, and one of two readers, as of a decode with two workers.
func (d *side) checkRelease() error {
	if err := d.idle(); err != nil {
		return err
	}
	for _, readers := range []int{1, 2} {
		k, err := d.keep(d.prompt(d.promptFor(3)))
		if err != nil {
			return err
		}
		for reader := 1; reader <= readers; reader++ {
			if _, err := d.awaitInUse(3, d.within(releaseLimit), CodeRelease, fmt.Sprintf("a prompt of 3 blocks is kept, and %d of %d readers have sent a notification", reader-1, readers)); err != nil {
				return err
			}
			d.f.Asserted++
			if _, err := d.ours.read(d.ctx, k, readers); err != nil {
				return err
			}
		}
		if _, err := d.awaitInUse(0, d.within(releaseLimit), CodeRelease, fmt.Sprintf("all of %s have sent a notification", safetext.Count(readers, "reader"))); err != nil {
			return err
		}
		d.f.Asserted++
	}
	return nil
}

// checkTwoReaders reads two prompts at once, by two decodes.
func (d *side) checkTwoReaders() error {
	if err := d.idle(); err != nil {
		return err
	}
	second, err := d.newReader("vllm-vcr-second")
	if err != nil {
		return err
	}
	defer second.Close()
	errs := make(chan error, 2)
	for _, r := range []*reader{d.ours, second} {
		k, err := d.keep(d.prompt(d.promptFor(4)))
		if err != nil {
			return err
		}
		go func() {
			got, err := r.read(d.ctx, k, 1)
			if err == nil {
				err = d.distinct(got, 4)
			}
			errs <- err
		}()
	}
	for range 2 {
		d.f.Asserted++
		if err := <-errs; err != nil {
			return err
		}
	}
	return d.idle()
}

// checkDeath ends a decode while it reads. The engine goes on, and the blocks can be read by another one.
func (d *side) checkDeath() error {
	dying, err := d.newReader("vllm-vcr-dying") // before the prompt is kept: a lease may be shorter than the start of an agent
	if err != nil {
		return err
	}
	k, err := d.keep(d.prompt(d.promptFor(8)))
	if err != nil {
		dying.Close()
		return err
	}
	if err := dying.DieReading(d.ctx, dying.peer, dying.descriptors(k.Blocks)); err != nil {
		d.f.AddNote(fmt.Sprintf("the decode did not die in the middle of its read: %v", err))
	}
	dying.Close()
	got, err := d.ours.read(d.ctx, k, 1)
	if err != nil {
		return err
	}
	d.f.Asserted++
	return d.distinct(got, 8)
}

// leaseLimit is how long a lease may take: that of vLLM is 30 seconds by default, and Python frontends set up to some minutes.
const leaseLimit = 3 * time.Minute

// checkLease keeps two prompts, and sends heartbeats for one: the other's blocks are freed at the end of its lease, and those not.
func (d *side) checkLease() error {
	if err := d.idle(); err != nil {
		return err
	}
	if _, err := d.keep(d.prompt(d.promptFor(2))); err != nil {
		return err
	}
	wanted, err := d.keep(d.prompt(d.promptFor(3)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(d.ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for ctx.Err() == nil {
			_ = d.ours.Notify(ctx, d.ours.peer, nixl.Notification{Heartbeat: []string{wanted.RequestID}}.String()) // a lost one is seen below
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	took, err := d.awaitInUse(3, d.within(leaseLimit), CodeLease, "a prompt of 2 blocks is kept, and one of 3, whose lease heartbeats extend; the former must be freed, the latter not")
	cancel()
	<-beating
	if err != nil {
		return err
	}
	d.f.Asserted++
	d.f.AddNote(fmt.Sprintf("a lease without heartbeats ended after %v", took.Round(time.Second)))
	if _, err := d.ours.read(d.ctx, wanted, 1); err != nil {
		return err
	}
	return d.idle()
}
