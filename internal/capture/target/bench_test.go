package target

import (
	"os"
	"strings"
	"testing"
)

// BenchmarkTwoHundred reads and checks a file that asks for some two hundred targets, and makes their command lines.
func BenchmarkTwoHundred(b *testing.B) {
	text, err := os.ReadFile("testdata/gpus.toml")
	if err != nil {
		b.Fatal(err)
	}
	many := strings.ReplaceAll(string(text), "seeds = [7, 13]", "seeds = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]")
	matrix := testMatrix()
	for b.Loop() {
		file, _ := Parse("targets.toml", []byte(many), nil, matrix)
		if len(file.Targets) < 200 {
			b.Fatalf("%d targets", len(file.Targets))
		}
		for _, t := range file.Targets {
			a := addressesOf(t)
			if len(t.EngineArgs(a))+len(t.FrontendArgs(a))+len(t.TapArgs(a, "/trace"))+len(t.LoadArgs(a, "/trace")) == 0 || len(t.ConfigHash()) != 64 {
				b.Fatal(t.Name())
			}
		}
	}
}
