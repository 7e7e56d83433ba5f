package grammar

import (
	"encoding/json"
	"math/big"
	"sync"
)

// interval is what bounds a number. nil bounds are absent.
type interval struct {
	low, high         *big.Rat
	openLow, openHigh bool
	step              *big.Rat // it is a multiple of this
}

func (s *schemas) numberOf(all []*object, integer bool) *node {
	in := s.interval(all)
	if integer {
		in.divide(s.work, big.NewRat(1, 1))
	}
	shortest, ok := in.shortest(s.work)
	if !ok {
		return choice()
	}
	return leaf(len(shortest), func(d *draw) string {
		if d.budget < 2 {
			return shortest
		}
		if text, ok := in.draw(d, integer); ok {
			d.budget -= max(len(text)-len(shortest), 0)
			return text
		}
		return shortest
	})
}

func (s *schemas) interval(all []*object) *interval {
	in := new(interval)
	for _, o := range all {
		if v, ok := s.number(o, "minimum"); ok {
			in.above(v, o.values["exclusiveMinimum"] == true)
		}
		if v, ok := s.number(o, "exclusiveMinimum"); ok {
			in.above(v, true)
		}
		if v, ok := s.number(o, "maximum"); ok {
			in.below(v, o.values["exclusiveMaximum"] == true)
		}
		if v, ok := s.number(o, "exclusiveMaximum"); ok {
			in.below(v, true)
		}
		if v, ok := s.number(o, "multipleOf"); ok {
			if v.Sign() <= 0 {
				s.fail("JSON schema: multipleOf is %s, which is not above 0", shown(o.values["multipleOf"]))
				return in
			}
			in.divide(s.work, v)
		}
	}
	return in
}

// number is a member that is a number. In draft 4 exclusiveMinimum is a bool.
func (s *schemas) number(o *object, key string) (*big.Rat, bool) {
	v, ok := o.get(key)
	if !ok {
		return nil, false
	}
	r, ok := rational(s.work, v)
	if _, isBool := v.(bool); !ok && !isBool {
		s.fail("JSON schema: %s is %s, which is not a number", key, shown(v))
	}
	return r, ok
}

// maxDigits bounds a number's text: big.Rat would write out any exponent.
const maxDigits = 400

func rational(w *Work, v any) (*big.Rat, bool) {
	number, ok := v.(json.Number)
	if !ok || len(number) > maxDigits {
		return nil, false
	}
	w.spend(2 + len(number)/8)
	if f, err := number.Float64(); err != nil || f != 0 && (f > 1e300 || f < -1e300) {
		return nil, false
	}
	return new(big.Rat).SetString(string(number))
}

func (in *interval) above(v *big.Rat, open bool) {
	if c := cmpOr(in.low, v, -1); c < 0 || c == 0 && open {
		in.low, in.openLow = v, open
	}
}

func (in *interval) below(v *big.Rat, open bool) {
	if c := cmpOr(in.high, v, 1); c > 0 || c == 0 && open {
		in.high, in.openHigh = v, open
	}
}

// cmpOr compares a bound that may be absent.
func cmpOr(a, b *big.Rat, absent int) int {
	if a == nil {
		return absent
	}
	return a.Cmp(b)
}

// divide demands a multiple of one more number: of the least common multiple,
// then.
func (in *interval) divide(w *Work, v *big.Rat) {
	if in.step == nil {
		in.step = v
		return
	}
	w.spendOn(in.step, v)
	// lcm(a/b, c/d) = lcm(a, c) / gcd(b, d) for fractions in lowest terms.
	num := new(big.Int).GCD(nil, nil, in.step.Num(), v.Num())
	num.Div(new(big.Int).Mul(in.step.Num(), v.Num()), num)
	in.step = new(big.Rat).SetFrac(num, new(big.Int).GCD(nil, nil, in.step.Denom(), v.Denom()))
}

// span returns the least and the greatest number of steps; nil where there is no
// bound. ok is false if no multiple of the step lies between the bounds.
func (in *interval) span(w *Work, step *big.Rat) (from, to *big.Int, ok bool) {
	w.spendOn(in.low, in.high, step)
	if in.low != nil {
		from = quotient(in.low, step, true)
		if in.openLow && new(big.Rat).Mul(step, new(big.Rat).SetInt(from)).Cmp(in.low) == 0 {
			from.Add(from, big.NewInt(1))
		}
	}
	if in.high != nil {
		to = quotient(in.high, step, false)
		if in.openHigh && new(big.Rat).Mul(step, new(big.Rat).SetInt(to)).Cmp(in.high) == 0 {
			to.Sub(to, big.NewInt(1))
		}
	}
	return from, to, from == nil || to == nil || from.Cmp(to) <= 0
}

// quotient is a/step, rounded up or down.
func quotient(a, step *big.Rat, up bool) *big.Int {
	q := new(big.Rat).Quo(a, step)
	whole, rest := new(big.Int).DivMod(q.Num(), q.Denom(), new(big.Int))
	if up && rest.Sign() != 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole
}

// steps are the step that is demanded or, for any number, ever finer ones.
func (in *interval) steps() []*big.Rat {
	if in.step != nil {
		return []*big.Rat{in.step}
	}
	return decimals()
}

// decimals are 1, 0.1 and so on.
var decimals = sync.OnceValue(func() (all []*big.Rat) {
	step := big.NewRat(1, 1)
	for range 32 {
		all = append(all, step)
		step = new(big.Rat).Mul(step, big.NewRat(1, 10))
	}
	return all
})

// shortest is the number nearest to 0, of the coarsest step that has one.
func (in *interval) shortest(w *Work) (string, bool) {
	for _, step := range in.steps() {
		from, to, ok := in.span(w, step)
		if !ok {
			continue
		}
		k := new(big.Int)
		switch {
		case from != nil && from.Sign() > 0:
			k = from
		case to != nil && to.Sign() < 0:
			k = to
		}
		return decimal(w, k, step)
	}
	return "", false
}

// window is how far from the bound numbers are drawn.
const window = 1000

// draw draws a number; any number gets a decimal place more than it needs.
func (in *interval) draw(d *draw, integer bool) (string, bool) {
	w, steps := d.work, in.steps()
	for i, step := range steps {
		from, to, ok := in.span(w, step)
		if !ok {
			continue
		}
		if !integer && in.step == nil && i+1 < len(steps) && d.rand.IntN(2) == 0 {
			step = steps[i+1]
			from, to, _ = in.span(w, step)
		}
		return decimal(w, drawBetween(d, from, to), step)
	}
	return "", false
}

func drawBetween(d *draw, from, to *big.Int) *big.Int {
	switch {
	case from == nil && to == nil:
		return big.NewInt(int64(d.rand.IntN(window)))
	case from == nil:
		return new(big.Int).Sub(to, big.NewInt(int64(d.rand.IntN(window))))
	}
	size := int64(window)
	if to != nil {
		if room := new(big.Int).Sub(to, from); room.IsInt64() {
			size = min(size, room.Int64()+1)
		}
	}
	return new(big.Int).Add(from, big.NewInt(d.rand.Int64N(size)))
}

// decimal writes k steps. JSON has no fractions: a step such as 1/3 cannot be
// meant, as it came out of JSON.
func decimal(w *Work, k *big.Int, step *big.Rat) (string, bool) {
	w.spendOn(step, new(big.Rat).SetInt(k))
	v := new(big.Rat).Mul(new(big.Rat).SetInt(k), step)
	digits, exact := v.FloatPrec()
	if !exact || digits > maxDigits {
		return "", false
	}
	return v.FloatString(digits), true
}
