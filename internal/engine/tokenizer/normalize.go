package tokenizer

import "golang.org/x/text/unicode/norm"

// normalizer is a list of changes that a text goes through before it is split.
type normalizer []func(string) string

func (n normalizer) apply(text string) string {
	for _, change := range n {
		text = change(text)
	}
	return text
}

// forms are those of Unicode. A run of more than 30 combining marks, which is no text, is broken up by U+034F.
var forms = map[string]func(string) string{
	"NFC": norm.NFC.String, "NFD": norm.NFD.String, "NFKC": norm.NFKC.String, "NFKD": norm.NFKD.String,
}
