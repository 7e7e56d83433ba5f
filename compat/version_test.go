package compat

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestMinorLine(t *testing.T) {
	tests := []struct {
		name, in, want string // want is empty when there is no line
	}{
		{name: "tag", in: "v0.23.0", want: "0.23"},
		{name: "development build", in: "0.23.0.dev1+g16e9117", want: "0.23"},
		{name: "candidate", in: "v0.26.1rc0", want: "0.26"},
		{name: "one digit", in: "v0.9.2", want: "0.9"},
		{name: "two parts", in: "v0.24", want: "0.24"},
		{name: "minor with a tail", in: "0.24rc1", want: "0.24"},
		{name: "blanks and several v", in: " vv1.2.3\n", want: "1.2"},
		{name: "garbage", in: "garbage"},
		{name: "empty", in: ""},
		{name: "nightly", in: "nightly"},
		{name: "no minor", in: "v1"},
		{name: "empty minor", in: "1."},
		{name: "empty major", in: ".5"},
		{name: "minor without digits", in: "1.x"},
		{name: "major with a tail", in: "1a.2"},
		{name: "digits that are not ASCII", in: "٣.٤"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := MinorLine(tt.in)
			require.True(t, got == tt.want && ok == (tt.want != ""), "MinorLine(%q) = %q, %v, want %q", tt.in, got, ok, tt.want)
		})
	}
}

func TestParseVersion(t *testing.T) {
	tests := []struct {
		name, in, want string // want is empty when it is refused
	}{
		{name: "final", in: "0.24.0", want: "0.24.0"},
		{name: "tag", in: "v0.27.1", want: "0.27.1"},
		{name: "candidate", in: "v0.26.1rc0", want: "0.26.1rc0"},
		{name: "candidate of two digits", in: "0.26.0rc10", want: "0.26.0rc10"},
		{name: "corrected build", in: "0.25.1.post1", want: "0.25.1.post1"},
		{name: "blanks and several v", in: " vv0.1.2 ", want: "0.1.2"},
		{name: "largest number", in: "0.0.4294967295", want: "0.0.4294967295"},
		{name: "two parts", in: "v0.24"},
		{name: "alpha", in: "0.24.0a1"},
		{name: "development build", in: "0.24.0.dev1+g16e9117"},
		{name: "local build", in: "0.33.0+cpu"},
		{name: "number too large", in: "0.0.4294967296"},
		{name: "sign", in: "0.+1.0"},
		{name: "negative", in: "0.-1.0"},
		{name: "candidate without number", in: "0.24.0rc"},
		{name: "candidate without patch", in: "0.24.rc1"},
		{name: "post without number", in: "0.24.0.post"},
		{name: "post of a candidate", in: "0.24.0rc1.post1"},
		{name: "four numbers", in: "0.24.0.1"},
		{name: "five parts", in: "0.24.0.post1.1"},
		{name: "empty part", in: "0..1"},
		{name: "nightly", in: "nightly"},
		{name: "empty", in: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := ParseVersion(tt.in)
			if tt.want == "" {
				require.True(t, err != nil, "ParseVersion(%q) = %s, want an error", tt.in, v)
				return
			}
			require.True(t, err == nil && v.String() == tt.want && v.Tag() == "v"+tt.want, "ParseVersion(%q) = %s, %v, want %s", tt.in, v, err, tt.want)
		})
	}
}

func mustParse(t *testing.T, s string) Version {
	t.Helper()
	v, err := ParseVersion(s)
	require.NoError(t, err)
	return v
}

func sign(n int) int { return min(max(n, -1), 1) }

func FuzzParseVersion(f *testing.F) {
	for _, seed := range []string{"v0.33.0", "0.26.1rc0", "0.25.1.post1", "0.23.0.dev1+g16e9117", "v", "rc", "..."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseVersion(s)
		if err != nil {
			return
		}
		again, err := ParseVersion(v.Tag())
		require.True(t, err == nil && again == v, "%q reads as %s, which reads as %s, %v", s, v, again, err)
		// A number with leading zeros keeps them in MinorLine, nowhere else.
		if line, ok := MinorLine(v.String()); !ok || line != v.Line() {
			t.Errorf("MinorLine(%s) = %q, want %q", v, line, v.Line())
		}
	})
}

func TestNearer(t *testing.T) {
	for _, test := range []struct {
		name, v, w, release string
		want                bool
	}{
		{"both before, the newer", "0.32.0", "0.31.0", "0.33.0", true},
		{"both before, the older", "0.31.0", "0.32.0", "0.33.0", false},
		{"itself", "0.33.0", "0.32.0", "0.33.0", true},
		{"before rather than after", "0.25.0", "0.34.0", "0.33.0", true},
		{"after rather than before", "0.34.0", "0.25.0", "0.33.0", false},
		{"both after, the older", "0.34.0", "0.35.0", "0.33.0", true},
		{"the same", "0.32.0", "0.32.0", "0.33.0", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			parse := func(text string) Version {
				v, err := ParseVersion(text)
				require.NoError(t, err)
				return v
			}
			require.Equal(t, parse(test.v).Nearer(parse(test.w), parse(test.release)), test.want, "%s nearer than %s to %s", test.v, test.w, test.release)
		})
	}
}
