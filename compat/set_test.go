package compat

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func ptr[T any](v T) *T { return &v }

// said is the differences of two windows, one a line.
func said(before, after []Line) string {
	var b strings.Builder
	for _, d := range Diff(before, after) {
		b.WriteString(d.String() + "\n")
	}
	return b.String()
}

func TestSet(t *testing.T) {
	tests := []struct {
		name   string
		change Change
		want   string // the differences, or the error
	}{
		{
			name: "a tag moves", change: Change{Line: "0.33", Tag: ptr("v0.33.1"), Rev: ptr("aaaaaaaaa")},
			want: "0.33: tag v0.33.0 -> v0.33.1, protocol_rev 4ba787ec9 -> aaaaaaaaa, fidelity_validated true -> false\n",
		},
		{
			name: "a tag moves, and was captured", change: Change{Line: "0.33", Tag: ptr("v0.33.1"), Validated: ptr(true)},
			want: "0.33: tag v0.33.0 -> v0.33.1\n",
		},
		{
			name: "a commit moves", change: Change{Line: "0.33", Rev: ptr("aaaaaaaaa")},
			want: "0.33: protocol_rev 4ba787ec9 -> aaaaaaaaa, fidelity_validated true -> false\n",
		},
		{
			name: "more digits of the same commit", change: Change{Line: "0.33", Rev: ptr("4ba787ec9aaaa")},
			want: "0.33: protocol_rev 4ba787ec9 -> 4ba787ec9aaaa\n",
		},
		{name: "fewer digits of the same commit", change: Change{Line: "0.33", Rev: ptr("4ba787ec")}, want: "0.33: protocol_rev 4ba787ec9 -> 4ba787ec\n"},
		{name: "what it is", change: Change{Line: "0.33", Tag: ptr("v0.33.0"), Validated: ptr(true), Default: true, Add: true}},
		{name: "validated", change: Change{Line: "0.32", Validated: ptr(true)}, want: "0.32: fidelity_validated false -> true\n"},
		{name: "not validated", change: Change{Line: "0.33", Validated: ptr(false)}, want: "0.33: fidelity_validated true -> false\n"},
		{name: "the default", change: Change{Line: "0.32", Default: true}, want: "0.33: default true -> false\n0.32: default false -> true\n"},
		{
			name: "a fork", change: Change{Line: "0.33", PatchRepo: ptr("https://example.com/f"), PatchRev: ptr("aaaaaaaaa")},
			want: "0.33: patch_repo (none) -> https://example.com/f, patch_rev (none) -> aaaaaaaaa\n",
		},
		{
			name: "no fork", change: Change{Line: "0.32", PatchRepo: ptr(""), PatchRev: ptr("")},
			want: "0.32: patch_repo https://example.com/fork.git -> (none), patch_rev 0123456789abcdef0123456789abcdef01234567 -> (none)\n",
		},
		{
			name: "a new line", change: Change{Line: "0.34", Tag: ptr("v0.34.0"), Rev: ptr("aaaaaaaaa"), Default: true, Add: true},
			want: "0.34: added with tag v0.34.0, protocol_rev aaaaaaaaa, the default\n0.33: default true -> false\n",
		},
		{
			name:   "a new line of a fork, captured",
			change: Change{Line: "0.31", Tag: ptr("v0.31.0"), Rev: ptr("aaaaaaaaa"), PatchRepo: ptr("f"), PatchRev: ptr("bbbbbbbbb"), Validated: ptr(true), Add: true},
			want:   "0.31: added with tag v0.31.0, protocol_rev aaaaaaaaa, patch_repo f, patch_rev bbbbbbbbb, validated\n",
		},
		{name: "a line goes", change: Change{Line: "0.32", Remove: true}, want: "0.32: removed, it stood for v0.32.0\n"},
		{name: "a line that is not there goes", change: Change{Line: "0.31", Remove: true}},
		{name: "no name", change: Change{Default: true}, want: "error: the change names no line"},
		{name: "no change", change: Change{Line: "0.33"}, want: "error: the change of line 0.33 is empty"},
		{name: "removed and changed", change: Change{Line: "0.33", Remove: true, Default: true}, want: "error: line 0.33 cannot be removed and changed at once"},
		{name: "unknown", change: Change{Line: "0.34", Default: true}, want: "error: compat.toml has no line \"0.34\": it has nightly, rc, 0.33, 0.32"},
		{name: "new without a tag", change: Change{Line: "0.34", Rev: ptr("aaaaaaaaa"), Add: true}, want: "error: line 0.34 is new, so it needs a tag"},
		{
			name: "new without a commit", change: Change{Line: "0.34", Tag: ptr("v0.34.0"), Add: true},
			want: "error: line 0.34 is new, so it needs the commit that its tag was built from",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := parse(t, matrix)
			lines, err := m.Set(tt.change)
			got := said(m.Lines, lines)
			if err != nil {
				got = "error: " + err.Error()
			}
			require.NoDiff(t, cmp.Diff(tt.want, got), "-want +got")
			require.NoDiff(t, cmp.Diff(parse(t, matrix), m), "the matrix itself was changed (-want +got)")
		})
	}
}

func TestNewLinesGoWhereTheyBelong(t *testing.T) {
	tests := []struct{ name, matrix, add, want string }{
		{name: "nightly is first", matrix: "rc 0.33", add: "nightly", want: "nightly rc 0.33"},
		{name: "rc comes before stable lines", matrix: "nightly 0.33 0.32", add: "rc", want: "nightly rc 0.33 0.32"},
		{name: "the newest", matrix: "nightly 0.9 0.8", add: "0.10", want: "nightly 0.10 0.9 0.8"},
		{name: "between", matrix: "nightly 0.33 0.31", add: "0.32", want: "nightly 0.33 0.32 0.31"},
		{name: "the oldest", matrix: "0.33 0.31", add: "0.9", want: "0.33 0.31 0.9"},
		{name: "another major version", matrix: "0.33", add: "1.0", want: "1.0 0.33"},
		{name: "only trackers", matrix: "nightly rc", add: "0.33", want: "nightly rc 0.33"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := &Matrix{}
			for _, name := range strings.Fields(tt.matrix) {
				m.Lines = append(m.Lines, Line{Name: name, Tag: name, ProtocolRev: "aaaaaaaaa"})
			}
			after := &Matrix{}
			var err error
			if after.Lines, err = m.Set(Change{Line: tt.add, Tag: &tt.add, Rev: ptr("aaaaaaaaa"), Add: true}); err != nil {
				t.Fatal(err)
			}
			require.Equal(t, strings.Join(after.names(), " "), tt.want, "lines after")
		})
	}
}
