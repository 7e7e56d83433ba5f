package trace

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

// decimalForm is the shortest form by strconv alone, between the borders of the
// exponent form.
func decimalForm(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if f == math.Trunc(f) {
		s += ".0"
	}
	return s
}

// TestMillionths compares the short way to write a float with strconv: at its
// borders, beside every kind of number it takes, and for what a clock counts.
func TestMillionths(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	short := 0
	check := func(f float64) {
		t.Helper()
		if _, ok := millionths(f); ok {
			short++
		}
		if f < 1e-5 || f >= 1e16 {
			return
		}
		got, err := appendFloat(nil, f)
		if want := decimalForm(f); err != nil || string(got) != want {
			t.Fatalf("seed %d: want %s, got %s, %v", seed, want, got, err)
		}
	}
	beside := func(f float64) {
		t.Helper()
		check(f)
		check(math.Nextafter(f, 0))
		check(math.Nextafter(f, math.Inf(1)))
	}
	for _, f := range []float64{
		1e-5, 9.999999e-6, 0.00001, 0.000011, 0.1, 0.3, 0.1 + 0.2, 0.5, 1, 5, 10, 100.25, 1<<53 - 1, 1 << 53, 1e9, 999999999.999999,
		999999999.9999999, 1e9 - 1e-6, 1e15, 123456.78901234567, 4.9406564584124654e-3, 2.5e-5, 1.0000005, 1.00000049999, 0.0000105,
	} {
		beside(f)
	}
	for digits := 1.0; digits < 1e16; digits *= 10 {
		for scale := 1.0; scale <= 1e9; scale *= 10 {
			beside(digits / scale)
			beside((digits - 1) / scale)
		}
	}
	for range 1_000_000 {
		ns := random.Int64N(1 << (10 + random.IntN(45))) // a wait, as the tap has it
		check(float64(ns) / 1e6)
		check(math.Nextafter(float64(ns)/1e6, 0))
		check(random.Float64() * math.Pow10(random.IntN(14)))
	}
	if short < 900_000 {
		t.Errorf("only %d of the numbers went the short way", short)
	}
}

// TestAppendUints: what is copied from the value before it is what formatting gives.
func TestAppendUints(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		values := make([]uint64, random.IntN(8))
		want := "["
		for i := range values {
			values[i] = [...]uint64{0, 1, 9, 10, 64, 128, 99999, 1<<64 - 1, random.Uint64()}[random.IntN(9)]
			if i > 0 && random.IntN(2) == 0 {
				values[i] = values[i-1]
			}
			if i > 0 {
				want += ","
			}
			want += strconv.FormatUint(values[i], 10)
		}
		if got := string(appendUints(nil, values)); got != want+"]" {
			t.Fatalf("want %s], got %s", want, got)
		}
	}
}
