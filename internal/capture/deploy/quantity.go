package deploy

import (
	"encoding/json"
	"errors"
	"math/big"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A Quantity is an amount of a resource, such as 64Gi, 500m or 8. The zero value is 0. It is written as the API server
// writes it: with the largest suffix that needs no fraction, and with binary suffixes only if it was read with one.
type Quantity struct {
	nano   *big.Int // in 10^-9, the finest there is; nil is 0
	format format
}

type format int

const (
	decimal     format = iota // k, M, G, …; m, u, n
	binaryUnits               // Ki, Mi, Gi, …
	exponential               // e3, E6, …
)

var (
	quantityText = lazyregexp.New(`^([+-]?)([0-9]*)(?:\.([0-9]*))?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?$`)
	decimals     = []string{"n", "u", "m", "", "k", "M", "G", "T", "P", "E"} // from 10^-9, by thousands
	binaries     = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	errQuantity  = errors.New("want a quantity such as 500m, 8 or 64Gi")
)

// longestQuantity bounds what is read, in bytes, and largestExponent what is behind an e.
const (
	longestQuantity = 64
	largestExponent = 18
)

// ParseQuantity reads a quantity. What is finer than 10^-9 is rounded away from 0.
func ParseQuantity(text string) (Quantity, error) {
	parts := quantityText().FindStringSubmatch(text)
	if len(text) > longestQuantity || parts == nil || parts[2]+parts[3] == "" {
		return Quantity{}, errQuantity
	}
	amount, _ := new(big.Rat).SetString("0" + parts[2] + "." + parts[3] + "0")
	q := Quantity{}
	switch suffix := parts[4]; {
	case strings.HasSuffix(suffix, "i"):
		q.format = binaryUnits
		amount.Mul(amount, new(big.Rat).SetInt(power(1024, index(binaries, suffix))))
	case len(suffix) > 1:
		exponent, err := strconv.Atoi(suffix[1:])
		if err != nil || exponent > largestExponent || exponent < -largestExponent {
			return Quantity{}, errQuantity
		}
		q.format = exponential
		scale := new(big.Rat).SetInt(power(10, max(exponent, -exponent)))
		if exponent < 0 {
			scale.Inv(scale)
		}
		amount.Mul(amount, scale)
	default:
		amount.Mul(amount, new(big.Rat).SetFrac(power(1000, index(decimals, suffix)), power(1000, 3)))
	}
	amount.Mul(amount, new(big.Rat).SetInt(power(1000, 3)))
	var rest big.Int
	q.nano, _ = new(big.Int).QuoRem(amount.Num(), amount.Denom(), &rest)
	if rest.Sign() > 0 {
		q.nano.Add(q.nano, big.NewInt(1))
	}
	if parts[1] == "-" {
		q.nano.Neg(q.nano)
	}
	return q, nil
}

// MustParseQuantity reads a quantity of this program, which is one.
func MustParseQuantity(text string) Quantity {
	q, err := ParseQuantity(text)
	if err != nil {
		panic(text + ": " + err.Error())
	}
	return q
}

func power(base int64, exponent int) *big.Int {
	return new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(exponent)), nil)
}

func index(suffixes []string, suffix string) int {
	for i, s := range suffixes {
		if s == suffix {
			return i
		}
	}
	return -1 // not reached: the expression has the same suffixes
}

func (q Quantity) amount() *big.Int {
	if q.nano == nil {
		return new(big.Int)
	}
	return q.nano
}

// Sign is -1, 0 or 1.
func (q Quantity) Sign() int { return q.amount().Sign() }

// Cmp is -1, 0 or 1, as q is less than, equal to or more than other.
func (q Quantity) Cmp(other Quantity) int { return q.amount().Cmp(other.amount()) }

// Plus is the sum. It is written as q is, or as other where q is 0.
func (q Quantity) Plus(other Quantity) Quantity {
	if q.Sign() == 0 {
		q.format = other.format
	}
	q.nano = new(big.Int).Add(q.amount(), other.amount())
	return q
}

// String is the quantity as the API server writes it.
func (q Quantity) String() string {
	if q.Sign() == 0 {
		return "0"
	}
	one := power(1000, 3)
	whole, rest := new(big.Int).QuoRem(q.amount(), one, new(big.Int))
	if q.format == binaryUnits && rest.Sign() == 0 && whole.CmpAbs(big.NewInt(1024)) >= 0 {
		n, at := divide(whole, 1024, len(binaries)-1)
		return n.String() + binaries[at]
	}
	n, at := divide(q.amount(), 1000, len(decimals)-1)
	if q.format == exponential {
		if at == 3 {
			return n.String()
		}
		return n.String() + "e" + strconv.Itoa(3*(at-3))
	}
	return n.String() + decimals[at]
}

// divide divides by the base as often as nothing is left over, but no more than so many times.
func divide(n *big.Int, base int64, most int) (*big.Int, int) {
	for times := range most {
		quotient, rest := new(big.Int).QuoRem(n, big.NewInt(base), new(big.Int))
		if rest.Sign() != 0 {
			return n, times
		}
		n = quotient
	}
	return n, most
}

// MarshalJSON writes a string.
func (q Quantity) MarshalJSON() ([]byte, error) { return json.Marshal(q.String()) }

// UnmarshalJSON reads a string or a number.
func (q *Quantity) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*q = Quantity{}
		return nil
	}
	var err error
	*q, err = ParseQuantity(strings.Trim(string(text), `"`))
	return err
}
