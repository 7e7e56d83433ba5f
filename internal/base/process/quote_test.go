package process

import (
	"fmt"
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	long := strings.Repeat("x", quotedWidth)
	var many, last []string
	for i := range quotedLines + 3 {
		many = append(many, fmt.Sprintf("line %d", i))
	}
	last = append(last, "| [3 lines before these]")
	for _, line := range many[3:] {
		last = append(last, "| "+line)
	}
	tests := []struct{ name, output, want string }{
		{"nothing", "", ""},
		{"blank lines", "\n\n\n", ""},
		{"lines", "one\n\ntwo\n", "| one\n| two"},
		{"commands of GitHub", "::error::boo\n  ::set-output name=a::b\n", "| ::error::boo\n|   ::set-output name=a::b"},
		{"commands anywhere in a line", "say ##[error]boo and ##vso[task.setvariable]x\n", "| say ## [error]boo and ## vso[task.setvariable]x"},
		{"a command put together by leaving out", "##\x1b[error]boo ##\u200b[group]\n", "| ## [error]boo ## [group]"},
		{"a progress bar", "10%\r20%\r::error::30%", "| 10%\n| 20%\n| ::error::30%"},
		{"other line ends", "a\u2028::error::b\v::error::c", "| a\n| ::error::b\n| ::error::c"},
		{"colours and bells", "\x1b[31mred\x1b[0m\a\tdone", "| [31mred[0m done"},
		{"no text", "a\xff\xfeb", "| a\uFFFDb"},
		{"as long as can be", long, "| " + long},
		{"too long", long + "y", "| " + long + "…"},
		{"as many as can be", strings.Join(many[3:], "\n"), strings.Join(last[1:], "\n")},
		{"too many", strings.Join(many, "\n"), strings.Join(last, "\n")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Quote(test.output); got != test.want {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}
