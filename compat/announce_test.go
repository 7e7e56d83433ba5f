package compat

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestTitle(t *testing.T) {
	tests := []struct{ name, matrix, releases, want string }{
		{name: "nothing", matrix: "0.33.0", releases: "0.33.0"},
		{name: "all kinds", matrix: "0.33.0 0.32.0 0.31.0", releases: "0.31.0 0.32.1 0.33.0 0.34.0", want: "vLLM lines: add 0.34; move 0.32 to v0.32.1; drop 0.31"},
		{
			name: "many", matrix: "0.33.0 0.32.0 0.31.0", releases: "0.31.0.post1 0.32.0.post1 0.33.0.post1",
			want: "vLLM lines: 0 added, 3 moved, 0 dropped",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := matrixOf(t, tt.matrix).WatchStable(releasesOf(t, tt.releases), 3)
			require.NoError(t, err)
			if got := d.Title(); got != tt.want || len(got) > 72 {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
	d, err := matrixOf(t, "0.33.0").WatchRC(releasesOf(t, "0.33.0 0.34.0rc1"))
	if want := "vLLM lines: move rc to v0.34.0rc1"; err != nil || d.Title() != want {
		t.Errorf("got %q, %v, want %q", d.Title(), err, want)
	}
}

func TestBody(t *testing.T) {
	m := matrixOf(t, "nightly 0.33.0 0.32.0 0.31.0")
	for i := range m.Lines {
		m.Lines[i].ProtocolRev = "aaaaaaaa" + m.Lines[i].Tag[len(m.Lines[i].Tag)-1:]
	}
	m.Lines[0].ProtocolRev = m.Lines[1].ProtocolRev // nightly follows the newest
	releases := releasesOf(t, "0.31.0! 0.32.0 0.32.1 0.33.0 0.34.0")
	for i := range releases {
		releases[i].Rev = "bbbbbbbbb"
	}
	d, err := m.WatchStable(releases, 4)
	require.NoError(t, err)
	const want = `Decided from a list.

| line | from | to | commit | gates | default |
|---|---|---|---|---|---|
| 0.34 | - | v0.34.0 | - → bbbbbbbbb | no | no → yes |
| 0.33 | v0.33.0 | v0.33.0 | aaaaaaaa0 | yes | yes → no |
| 0.32 | v0.32.0 | v0.32.1 | aaaaaaaa0 → bbbbbbbbb | yes → no | no |

Notes:

- v0.33.0 is commit bbbbbbbbb in the list, but line 0.33 has aaaaaaaa0: find out which one the release was built from
- v0.31.0, which line 0.31 stands for, was yanked
- line 0.31 has no other release: remove it, or wait for one

What a person has to do:

- [ ] line 0.34 does not gate, as it is new: capture goldens from v0.34.0, register them (` + "`vllm-vcr golden add`), then `vllm-vcr compat set --line 0.34 --fidelity-validated`" + `
- [ ] line 0.32 does not gate, as its goldens are of v0.32.0: capture goldens from v0.32.1, register them (` + "`vllm-vcr golden add`), then `vllm-vcr compat set --line 0.32 --fidelity-validated`" + `
- [ ] nightly has the commit of the release that was the newest: ` + "`vllm-vcr compat set --line nightly --rev bbbbbbbbb`" + ` moves it on
- [ ] drink tea
`
	require.NoDiff(t, cmp.Diff(want, d.Body("a list", []string{"drink tea"})), "-want +got")
	d, err = matrixOf(t, "0.33.0").WatchStable(releasesOf(t, "0.33.0"), 0)
	if err != nil || len(d.toDo()) > 0 {
		t.Errorf("nothing changes, but there is to do: %q, %v", d.toDo(), err)
	}
	m.Lines[2].FidelityValidated = false
	d, err = m.WatchStable(releasesOf(t, "0.32.1 0.33.0"), 4)
	if err != nil || len(d.toDo()) != 1 {
		t.Errorf("the newest stays, so that nightly does: %q, %v", d.toDo(), err)
	}
}
