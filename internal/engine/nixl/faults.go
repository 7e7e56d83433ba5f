package nixl

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Faults are what a prefill engine does wrong on purpose, in the form that [Options] have.
//
//	late:TIME    it answers each handshake so much later
//	silent       it answers no handshake
//	hash         its compatibility hash is another one each time
//	geometry     its blocks have half of their length
//	engine       it has another engine_id than its answers to requests
//	die:TIME     its agent ends so long after the first handshake, and it answers no other one
//	die-in-read  its agent ends in the middle of the second read
//	slow:TIME    its agent looks at what decode engines send only each TIME, as over a slow link
var Faults = []string{"late:TIME", "silent", "hash", "geometry", "engine", "die:TIME", "die-in-read", "slow:TIME"}

func checkFault(text string) error {
	kind, value, timed := strings.Cut(text, ":")
	form := kind
	if timed {
		if d, err := time.ParseDuration(value); err != nil || d < 0 {
			return fmt.Errorf("fault %q: want a time such as %s:6s", text, kind)
		}
		form = kind + ":TIME"
	}
	if text != "" && !slices.Contains(Faults, form) {
		return fmt.Errorf("fault %q: want one of %s", text, strings.Join(Faults, ", "))
	}
	return nil
}

// injectIntoAgent is what is wrong with the agent, from its start or after a read.
func (p *Plane) injectIntoAgent(afterRead bool) error {
	kind, value, _ := strings.Cut(p.opt.Fault, ":")
	span, _ := time.ParseDuration(value) // checked
	switch {
	case kind == "slow" && !afterRead:
		return p.agent.Misbehave(p.running, span, false)
	case kind == "die-in-read" && afterRead:
		return p.agent.Misbehave(p.running, 0, true)
	}
	return nil
}

// injectBefore is what goes wrong before an answer: it reports whether there is one.
func (p *Plane) injectBefore() bool {
	kind, value, _ := strings.Cut(p.opt.Fault, ":")
	span, _ := time.ParseDuration(value) // checked
	switch kind {
	case "late":
		select {
		case <-time.After(span):
		case <-p.running.Done():
		}
	case "die":
		select {
		case <-p.dead:
			return false
		default:
			p.dying.Do(func() {
				time.AfterFunc(span, func() {
					close(p.dead)
					_ = p.agent.Close()
				})
			})
		}
	}
	return kind != "silent"
}

// injectInto is what is wrong with an answer.
func (p *Plane) injectInto(m *Metadata, hash *string) {
	switch p.opt.Fault {
	case "hash":
		*hash = fmt.Sprintf("%0*x", len(*hash), p.answered.Add(1))
	case "geometry":
		m.BlockLens = slices.Clone(m.BlockLens)
		for i := range m.BlockLens {
			m.BlockLens[i] /= 2
		}
	case "engine":
		m.EngineID += "-other"
	}
}
