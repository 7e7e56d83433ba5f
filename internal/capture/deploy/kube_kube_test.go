package deploy

import (
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Quantities are read, written, compared and added as the libraries of Kubernetes do it.
func FuzzQuantity(f *testing.F) {
	texts := []string{
		"0", "1", "8", "64Gi", "65536Mi", "1000m", "500m", "0.5", "0.5Gi", "1.5Gi", "1023Ki", "1024Ki", "1025Ki", "100M", "1e3",
		"12E6", "1e-3", "-2", "-64Mi", "+3", ".5", "5.", "0.0000000001", "1n", "1500u", "8Ei", "1E", "", ".", "Gi", "1 Gi", "1gi", "1K", "e3", "1e", "0Gi",
	}
	for i, text := range texts {
		f.Add(text, texts[len(texts)-1-i])
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		a, want, comparable := both(t, one)
		b, wantB, comparableB := both(t, other)
		if !comparable || !comparableB {
			return
		}
		if got := a.Cmp(b); got != want.Cmp(wantB) {
			t.Errorf("%s against %s: %d", one, other, got)
		}
		sum := want.DeepCopy()
		sum.Add(wantB)
		if got := a.Plus(b).String(); got != sum.String() {
			t.Errorf("%s and %s are %s, want %s", one, other, got, sum.String())
		}
	})
}

// both reads a text in two ways. Not compared are texts without a digit, which the libraries take for 0, and amounts that
// they cap or that are beyond our bounds.
func both(t *testing.T, text string) (Quantity, resource.Quantity, bool) {
	want, wantErr := resource.ParseQuantity(text)
	got, err := ParseQuantity(text)
	size := math.Abs(want.AsApproximateFloat64())
	if wantErr == nil && (!strings.ContainsAny(text, "0123456789") || len(text) > 12 || !(size <= 1e18) || size > 0 && size < 1e-9) {
		return got, want, false
	}
	if wantErr == nil && err != nil && (want.IsZero() || strings.HasPrefix(strings.ToLower(strings.TrimLeft(text, "+-.")), "e")) {
		return got, want, false
	}
	if (err == nil) != (wantErr == nil) {
		t.Errorf("%q: %v, want %v", text, err, wantErr)
	}
	if err != nil || wantErr != nil {
		return got, want, false
	}
	want.Add(resource.Quantity{}) // until then it is written as it was given
	if got.String() != want.String() || got.Sign() != want.Sign() {
		t.Errorf("%q is written %s, want %s", text, got, want.String())
	}
	return got, want, true
}

// Names are taken as the libraries of Kubernetes take them.
func FuzzNames(f *testing.F) {
	for _, text := range []string{
		"", "a", "A", "0.33", "a-b", "-a", "a-", "a.b", "a..b", ".a", "a_b", "x/y", "x.y/z", "X/y", "x/", "/y", "x/y/z", ".", "..", "..a", "...", ".-", "1a",
		"nvidia.com/gpu.product", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127),
		"x/" + strings.Repeat("a", 64), "a\n", "é",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, rule := range []struct {
			name string
			is   func(string) bool
			want []string // what is against it
		}{
			{"label", IsLabel, validation.IsDNS1123Label(text)},
			{"subdomain", IsSubdomain, validation.IsDNS1123Subdomain(text)},
			{"service", IsServiceName, validation.IsDNS1035Label(text)},
			{"label value", IsLabelValue, validation.IsValidLabelValue(text)},
			{"label key", IsLabelKey, validation.IsQualifiedName(text)},
			{"data key", IsDataKey, validation.IsConfigMapKey(text)},
		} {
			if got := rule.is(text); got != (len(rule.want) == 0) {
				t.Errorf("%s %q: %v, but Kubernetes says %q", rule.name, text, got, rule.want)
			}
		}
	})
}
