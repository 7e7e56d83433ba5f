package pyclient_test

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/frontends/pyclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Releases of engines whose environments are used, and other releases that are tried on the nearest of these, separated
// by spaces. Each takes half a minute, and the index is asked for its sources.
const (
	envEngines  = "VLLM_VCR_ENGINES"
	envReleases = "VLLM_VCR_RELEASES"
)

// What the player of these tests registers with and says.
const (
	maxModelLen  = 2048
	numGPUBlocks = 101
	blockSize    = 32
	vocab        = 2048
)

// engine is the player as options for [pyclient.Run].
func engine(opt pyclient.Options, played player.Options) pyclient.Options {
	source := player.Random{Seed: 1, Vocab: vocab}
	opt.MaxModelLen, opt.NumGPUBlocks, opt.BlockSize = maxModelLen, numGPUBlocks, blockSize
	opt.Says = func(id string) func(int) uint32 {
		script, _ := source.Script(&player.Request{ID: id})
		return script.Fill
	}
	opt.Engine = func(handshake string) (func(context.Context) error, error) {
		played.Handshake, played.Source, played.Vocab = handshake, source, vocab
		played.Limits.MaxModelLen, played.KVCache.NumGPUBlocks, played.KVCache.BlockSize = maxModelLen, numGPUBlocks, blockSize
		p, err := player.New(played)
		return p.Run, err
	}
	return opt
}

// release is options for a release on the environment that is nearest to it.
func release(t *testing.T, name string) pyclient.Options {
	t.Helper()
	version, err := compat.ParseVersion(name)
	require.NoError(t, err)
	environment, err := pyclient.Nearest(testenv.PeersDir(t), version)
	require.NoErrorf(t, err, "install it with: .ci/peers engine %s", name)
	index := &pypi.Index{}
	releases, err := index.Releases(t.Context(), "vllm")
	require.NoError(t, err)
	at := slices.IndexFunc(releases, func(r pypi.Release) bool { return r.Version == name })
	if at < 0 {
		t.Fatalf("the index has no release %s", name)
	}
	wheel, err := releases[at].Wheel("linux", "amd64")
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cache := cmp.Or(os.Getenv("VLLM_VCR_TEST_CACHE"), t.TempDir())
	tree, err := pyclient.Sources(t.Context(), pyclient.Wheel{Key: wheel.SHA256, Sure: true, Open: func(ctx context.Context) (*pypi.Wheel, error) {
		return index.OpenWheel(ctx, wheel)
	}}, cache, log)
	require.NoError(t, err)
	t.Logf("release %s on the environment of %s: %d files, %d bytes, %d downloaded", name, environment.Release, tree.Files,
		tree.Bytes, tree.Downloaded)
	return pyclient.Options{Python: environment.Python, Sources: tree, Model: testenv.ModelDir(t), Log: log}
}

func TestReleases(t *testing.T) {
	names := append(strings.Fields(os.Getenv(envEngines)), strings.Fields(os.Getenv(envReleases))...)
	if len(names) == 0 {
		t.Skipf("set %s to the releases whose CPU engines are installed, such as \"0.33.0 0.27.1\"", envEngines)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			opt := engine(release(t, name), player.Options{VLLMVersion: "v" + name})
			results, err := pyclient.Run(t.Context(), opt)
			require.NoError(t, err)
			for _, r := range results {
				t.Log(r.Verdict, r.Case, r.Tokens, r.Message, r.Where)
				if r.Verdict != pyclient.Passed && r.Verdict != pyclient.Skipped {
					t.Error(r)
				}
			}
		})
	}
}

// TestOthers: a client and an engine of different lines, and an engine that says something else, do not pass.
func TestOthers(t *testing.T) {
	installed := strings.Fields(os.Getenv(envEngines))
	needs := func(t *testing.T, name string) pyclient.Options {
		t.Helper()
		if !slices.Contains(installed, name) {
			t.Skipf("%s does not name %s", envEngines, name)
		}
		opt := release(t, name)
		opt.Patience = 10 * time.Second
		return opt
	}
	codec := without(t, "0.33", "EngineCoreReadyResponse", "supports_lora")
	const noLoRA = "handshake: ValidationError: Object missing required field `supports_lora` (vllm/v1/engine/core_client.py:"
	const longer = "logprobs: ValidationError: Expected `array` of length 3 to 4, got 5 - at `$[1][0][3]` (vllm/v1/serial_utils.py:"
	tests := []struct {
		name, client string
		played       player.Options
		change       func(*pyclient.Options)
		want         []string // beginnings of what failed
	}{
		{
			name: "newer engine", client: "0.27.1", played: player.Options{VLLMVersion: "v0.33.0"},
			want: []string{"failed async/" + longer, "failed sync/" + longer},
		},
		{
			name: "older engine", client: "0.33.0", played: player.Options{VLLMVersion: "v0.27.1"},
			want: []string{"failed async/" + noLoRA, "failed sync/" + noLoRA},
		},
		{
			name: "no supports_lora", client: "0.33.0", played: player.Options{VLLMVersion: "v0.33.0", Codec: codec},
			want: []string{"failed async/" + noLoRA, "failed sync/" + noLoRA},
		},
		{
			name: "another token", client: "0.33.0", played: player.Options{VLLMVersion: "v0.33.0"},
			change: mishear("sync/streams-2", 13),
			want:   []string{`failed sync/streams: request "sync/streams-2": tokens [280 974 `},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opt := engine(needs(t, test.client), test.played)
			if test.change != nil {
				test.change(&opt)
			}
			results, err := pyclient.Run(t.Context(), opt)
			require.NoError(t, err)
			failed := slices.DeleteFunc(red(results), func(line string) bool { return !strings.HasPrefix(line, "failed ") })
			checkPrefixes(t, failed, test.want)
		})
	}
}

// mishear makes the token at a position of an answer another than the engine says.
func mishear(id string, position int) func(*pyclient.Options) {
	return func(opt *pyclient.Options) {
		says := opt.Says
		opt.Says = func(of string) func(int) uint32 {
			return func(at int) uint32 {
				token := says(of)(at)
				if of == id && at == position {
					token++
				}
				return token
			}
		}
	}
}

// without is the codec of a line, one of whose structs lacks a field.
func without(t *testing.T, line, name, field string) *protocol.Codec {
	t.Helper()
	profile, err := protocol.LoadProfile(line)
	require.NoError(t, err)
	s := profile.Structs[name]
	s.Fields = slices.DeleteFunc(slices.Clone(s.Fields), func(f protocol.Field) bool { return f.Name == field })
	profile.Structs[name] = s
	codec, err := protocol.NewCodec(profile)
	require.NoError(t, err)
	return codec
}
