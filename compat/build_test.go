package compat

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseBuild(t *testing.T) {
	tests := []struct {
		name, in, want string // want is empty when it is refused
		release, dev   bool
		candidate      bool
		line, variant  string
	}{
		{name: "release", in: "v0.33.0", want: "0.33.0", release: true, line: "0.33"},
		{name: "candidate", in: "0.34.0rc1", want: "0.34.0rc1", release: true, candidate: true, line: "0.34"},
		{name: "corrected build", in: "0.25.1.post1", want: "0.25.1.post1", release: true, line: "0.25"},
		{name: "development", in: "0.34.0.dev123+g1a2b3c4d5", want: "0.34.0.dev123+g1a2b3c4d5", dev: true, line: "0.34"},
		{name: "of a candidate", in: "0.11.1rc8.dev14+gaa384b3c0.cu130", want: "0.11.1rc8.dev14+gaa384b3c0.cu130", dev: true, line: "0.11", variant: "cu130"},
		{name: "of a corrected build", in: "0.25.1.post2.dev1", want: "0.25.1.post2.dev1", dev: true, line: "0.25"},
		{name: "variant", in: "0.33.0+cpu", want: "0.33.0+cpu", line: "0.33", variant: "cpu"},
		{name: "variant of a candidate", in: "0.10.2rc2+cu129", want: "0.10.2rc2+cu129", candidate: true, line: "0.10", variant: "cu129"},
		{name: "changed tree", in: "0.34.0.dev1+g1a2b3c4d5.d20261122", want: "0.34.0.dev1+g1a2b3c4d5.d20261122", dev: true, line: "0.34"},
		{name: "no number", in: "1.0.0.dev", want: "1.0.0.dev0", dev: true, line: "1.0"},
		{name: "spelled otherwise", in: "0.33.0+CPU_avx-512", want: "0.33.0+cpu.avx.512", line: "0.33", variant: "cpu.avx.512"},
		{name: "two parts", in: "0.34.dev1"},
		{name: "empty local", in: "0.33.0+"},
		{name: "two locals", in: "0.33.0+cpu+cu"},
		{name: "local with a newline", in: "0.33.0+cpu\n::error::x"},
		{name: "negative", in: "0.33.0.dev-1"},
		{name: "number too large", in: "0.33.0.dev4294967296"},
		{name: "development twice", in: "0.33.0.dev1.dev2"},
		{name: "nightly", in: "nightly"},
		{name: "empty", in: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := ParseBuild(tt.in)
			if tt.want == "" {
				require.True(t, err != nil, "ParseBuild(%q) = %s, want an error", tt.in, b)
				return
			}
			if err != nil || b.String() != tt.want || b.Line() != tt.line || b.Variant() != tt.variant {
				t.Errorf("ParseBuild(%q) = %s of line %s, variant %q, %v", tt.in, b, b.Line(), b.Variant(), err)
			}
			if b.IsRelease() != tt.release || b.IsDevelopment() != tt.dev || b.IsCandidate() != tt.candidate {
				t.Errorf("%s: release %v, development %v, candidate %v", b, b.IsRelease(), b.IsDevelopment(), b.IsCandidate())
			}
			if _, err := ParseVersion(tt.in); (err == nil) != tt.release {
				t.Errorf("ParseVersion(%q): %v", tt.in, err)
			}
		})
	}
}

// TestBuildOrder: as packaging.version of Python sorts them.
func TestBuildOrder(t *testing.T) {
	order := []string{
		"0.33.9", "0.34.0.dev5+g1a2b3c4d5", "0.34.0.dev5+g1a2b3c4d5.cu130", "0.34.0.dev40", "0.34.0rc0.dev1", "0.34.0rc1.dev14", "0.34.0rc1.dev14+g0", "0.34.0rc1",
		"0.34.0rc1+cpu", "0.34.0rc2", "0.34.0", "0.34.0+cpu", "0.34.0+cpu.2", "0.34.0+cu129", "0.34.0+9", "0.34.0+010", "0.34.0.post1.dev3",
		"0.34.0.post1", "0.34.1.dev0",
	}
	for i, a := range order {
		for j, b := range order {
			v, err := ParseBuild(a)
			w, err2 := ParseBuild(b)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			if got := v.Compare(w); sign(got) != sign(i-j) {
				t.Errorf("%s.Compare(%s) = %d, want the sign of %d", a, b, got, i-j)
			}
		}
	}
}

func FuzzParseBuild(f *testing.F) {
	for _, seed := range []string{"v0.33.0", "0.11.1rc8.dev14+gaa384b3c0.cu130", "0.33.0+CPU_1", "1.0.0.dev", "0.25.1.post2.dev1", "+", ".dev"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBuild(s)
		if err != nil {
			return
		}
		again, err := ParseBuild(b.String())
		require.True(t, err == nil && again == b && again.Compare(b) == 0, "%q reads as %s, which reads as %s, %v", s, b, again, err)
		if v, err := ParseVersion(s); (err == nil) != b.IsRelease() || err == nil && v != b.Version {
			t.Errorf("%q reads as %s, and as version %s, %v", s, b, v, err)
		}
	})
}
