package acceptance

import (
	"context"
	"log/slog"
	"time"
)

// pythonReady is how long a Python client may take for a handshake: it makes its tokenizer and its metrics meanwhile.
const pythonReady = 15 * time.Second

// A Measurement makes the table of a release.
type Measurement struct {
	Release string
	Peer    string // [RustFrontend], [PythonFrontend] or [EngineCore]
	Model   string // model directory of the peer
	Workers int    // peers that run at the same time
	// Frontend returns the path of the vllm-rs of the release, Python that of the interpreter of its CPU engine. Each is called if the
	// peer needs it.
	Frontend, Python func(context.Context) (string, error)
	Log              *slog.Logger
	Progress         func(done, of int)
}

// Make measures the peer.
func (m Measurement) Make(ctx context.Context) (*Table, error) {
	if m.Peer == EngineCore {
		return m.measureEngine(ctx)
	}
	messages, err := New(m.Release)
	if err != nil {
		return nil, err
	}
	measure := Rust{Model: m.Model, Workers: m.Workers, Log: m.Log, Progress: m.Progress}
	if m.Peer == RustFrontend {
		if measure.Binary, err = m.Frontend(ctx); err != nil {
			return nil, err
		}
	} else {
		if measure.Binary, err = m.Python(ctx); err != nil {
			return nil, err
		}
		before, stop, err := StartPython(ctx, measure.Binary, m.Model)
		if err != nil {
			return nil, err
		}
		defer stop()
		measure.Before, measure.Ready = before, pythonReady
	}
	outcomes, err := measure.Measure(ctx, messages)
	if err != nil {
		return nil, err
	}
	return NewTable(m.Peer, m.Release, messages, outcomes), nil
}

func (m Measurement) measureEngine(ctx context.Context) (*Table, error) {
	messages, err := NewRequests(m.Release)
	if err != nil {
		return nil, err
	}
	python, err := m.Python(ctx)
	if err != nil {
		return nil, err
	}
	start, stop, err := StartEngine(ctx, python, m.Model)
	if err != nil {
		return nil, err
	}
	defer stop()
	outcomes, err := Engine{Start: start, Workers: m.Workers, Progress: m.Progress}.Measure(ctx, messages)
	if err != nil {
		return nil, err
	}
	return NewTable(EngineCore, m.Release, messages, outcomes), nil
}
