package report

import (
	"io"
	"testing"
)

// BenchmarkRender writes a document of 10,000 cases, 1,000 of which fail, in every
// format.
func BenchmarkRender(b *testing.B) {
	r := large(10000)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			d := New(r, someRun())
			for _, f := range renderers {
				if err := f.write(io.Discard, d); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	d := New(r, someRun())
	for _, f := range renderers {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				if err := f.write(io.Discard, d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
