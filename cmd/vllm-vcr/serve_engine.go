package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/serve"
	"github.com/vllm-vcr/conformance/internal/serve/remote"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// engineInPlace is an engine of vLLM, in the place of the player: one that serve starts, or waits for at an address.
type engineInPlace struct{ command, address string }

func (o *engineInPlace) add(flags *pflag.FlagSet) {
	flags.StringVar(&o.command, "engine-command", "", "`COMMAND` that starts an engine of vLLM behind the frontend, in the place of the player. It is split into words as in a shell, but no shell runs it. Placeholders: {handshake}, {handshake_host}, {handshake_port}, {line}, {tag}")
	flags.StringVar(&o.address, "engine-handshake", "", "handshake `ADDRESS`, tcp://HOST:PORT, where the builtin frontend waits for an engine of vLLM that you start yourself, in the place of the player")
	exclusive(flags, "engine-command", "engine-handshake")
}

// flag is the one that is given, or "".
func (o *engineInPlace) flag() string {
	switch {
	case o.command != "":
		return "--engine-command"
	case o.address != "":
		return "--engine-handshake"
	}
	return ""
}

// checkEngine refuses flags that have no meaning where an engine takes the place of the player.
func (opts *serveOptions) checkEngine(flags *pflag.FlagSet) error {
	err := check.CommandEngine{Template: opts.engine.command}.Check(check.SuiteLive)
	if opts.engine.command == "" {
		if opts.cfg.Frontend.Wanted != serve.Builtin {
			return errors.New("--engine-handshake: only the builtin frontend waits for an engine at an address: add --frontend builtin, or use --engine-command")
		}
		err = check.CheckHandshake(opts.engine.address)
	}
	if err != nil {
		return err
	}
	var play playOptions
	player := pflag.NewFlagSet("", pflag.ContinueOnError)
	play.add(player)
	var wrong []string
	flags.Visit(func(f *pflag.Flag) {
		if player.Lookup(f.Name) != nil && !slices.Contains([]string{"vllm-version", "tokenizer", "handshake-timeout", "faults", "allow-request-faults", "seed"}, f.Name) || f.Name == "port-per-rank" {
			wrong = append(wrong, "--"+f.Name)
		}
	})
	if wrong != nil {
		return fmt.Errorf("%s: with %s there is no player that this could be for: leave it out", strings.Join(wrong, ", "), opts.engine.flag())
	}
	return nil
}

// engineGrace is how long the engine of --engine-command may take to end after SIGTERM.
const engineGrace = 10 * time.Second

// engineOfVLLM waits for the engine of --engine-handshake, or starts that of --engine-command: behind the builtin frontend it is
// waited for, another frontend waits at handshake itself.
func (opts *serveOptions) engineOfVLLM(ctx context.Context, env *environment, handshake string) (*serve.Engines, error) {
	line := ""
	if version := opts.play.engine.opt.VLLMVersion; version != "auto" {
		line = protocol.LineOf(releasesOf([]string{version})[0])
	}
	if opts.engine.command == "" {
		return opts.remote(ctx, env, opts.engine.address, line)
	}
	builtin := opts.cfg.Frontend.Wanted == serve.Builtin
	if builtin {
		address, err := unusedAddress()
		if err != nil {
			return nil, infra(err)
		}
		handshake = "tcp://" + address
	}
	known := cmp.Or(line, protocol.Newest())
	command := check.CommandEngine{Template: opts.engine.command, Grace: engineGrace}
	process, err := command.Engine(player.Options{Handshake: handshake, VLLMVersion: "v" + opts.release(known), Log: env.log})
	if err != nil {
		return nil, err
	}
	if !builtin {
		return &serve.Engines{Group: &engineProcess{process, known}, Count: 1, Compute: true, Close: func() {}}, nil
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	accepting, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ended := make(chan struct{})
	go func() {
		fail(process.Run(running))
		close(ended)
	}()
	end := func() { stop(); <-ended }
	engines, err := opts.remote(accepting, env, handshake, line)
	if err != nil {
		end()
		return nil, err
	}
	engines.Close = end
	return engines, nil
}

// engineProcess is the engine of --engine-command behind a frontend in another process, which knows when it is ready.
type engineProcess struct {
	check.Subject
	line string
}

func (e *engineProcess) Line() string               { return e.line }
func (*engineProcess) Engines() []player.EngineInfo { return nil }

func (*engineProcess) Ready() <-chan struct{} {
	ready := make(chan struct{})
	close(ready)
	return ready
}

// remote waits for an engine at an address.
func (opts *serveOptions) remote(ctx context.Context, env *environment, address, line string) (*serve.Engines, error) {
	wait := cmp.Or(opts.play.engine.opt.HandshakeTimeout, 5*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("it has not registered within %v: start it with --data-parallel-address and --data-parallel-rpc-port of this address, or give more time with --handshake-timeout", wait))
	defer cancel()
	env.log.Info("waiting for the engine", "handshake", address)
	engine, err := remote.Accept(ctx, remote.Options{
		Address: address, Line: line, Log: env.log, Step: func(step string) { env.log.Debug("engine", "step", step) },
	})
	if err != nil {
		return nil, infra(err)
	}
	env.log.Info("the engine has registered", "release", engine.Release(), "line", engine.Line())
	return &serve.Engines{
		Group: engine, Count: 1, LoRA: engine.Engines()[0].MaxLoRAs != 0, Tasks: engine.Tasks(),
		Compute: true, Close: func() {},
	}, nil
}
