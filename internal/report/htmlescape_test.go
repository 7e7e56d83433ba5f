package report

import (
	"html"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// breakout leaves every place of a page where it is not escaped.
const breakout = "\"'><img/src=x><!--&amp;%41\x00"

// hostileRuns are the runs as they are, and with a breakout in all their texts.
func hostileRuns() map[string]*Document {
	all := runs()
	for name, d := range runs() {
		extend(reflect.ValueOf(d), breakout)
		all[name+" with breakouts"] = d
	}
	return all
}

// extend appends to every text of a document, inside the bracket of a list.
// Verdicts and suites decide what is shown; they stay.
func extend(v reflect.Value, end string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			extend(v.Elem(), end)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				extend(v.Field(i), end)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			extend(v.Index(i), end)
		}
	case reflect.Map:
		extendMap(v, end)
	case reflect.String:
		decides := v.Type() == reflect.TypeFor[conformance.Verdict]() || v.Type() == reflect.TypeFor[conformance.Suite]()
		if text, isList := strings.CutSuffix(v.String(), "]"); isList {
			v.SetString(text + end + "]")
		} else if text != "" && !decides {
			v.SetString(text + end)
		}
	}
}

// extendMap appends to the keys too, but for those that decide what is shown.
func extendMap(m reflect.Value, end string) {
	for _, key := range m.MapKeys() {
		k, v := reflect.New(key.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		k.Set(key)
		v.Set(m.MapIndex(key))
		extend(k, end)
		extend(v, end)
		m.SetMapIndex(key, reflect.Value{})
		m.SetMapIndex(k, v)
	}
}

// TestHTMLEscapes: no text of a document changes what the page is made of.
func TestHTMLEscapes(t *testing.T) {
	harmless := runs()
	for name, d := range harmless {
		extend(reflect.ValueOf(d), "harmless")
		hostile := runs()[name]
		extend(reflect.ValueOf(hostile), breakout)
		page := string(withoutScript(t, render(t, HTML, hostile)))
		require.NoDiff(t, cmp.Diff(skeleton(string(withoutScript(t, render(t, HTML, d)))), skeleton(page)), "%s: -with harmless texts +with breakouts", name)
		require.True(t, !strings.Contains(page, "\x00"), "%s: the page has a NUL", name)
		if want := "&#34;&#39;&gt;&lt;img/src=x&gt;&lt;!--&amp;amp;%41\uFFFD"; !strings.Contains(page, want) {
			t.Errorf("%s: no text is shown as it came", name)
		}
	}
}

var (
	tags   = regexp.MustCompile(`<[^>]*>`)
	values = regexp.MustCompile(`"[^"]*"`)
)

// skeleton is the tags of a page without the values of their attributes.
func skeleton(page string) []string {
	return tags.FindAllString(values.ReplaceAllString(page, `""`), -1)
}

// TestHTMLAnchors: what refers into the page refers to an element of it.
func TestHTMLAnchors(t *testing.T) {
	reference := regexp.MustCompile(`href="#([^"]*)"`)
	for name, d := range hostileRuns() {
		text := string(withoutScript(t, render(t, HTML, d)))
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			id, err := url.PathUnescape(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%s: %s: %v", name, m[0], err)
			}
			if !strings.Contains(text, `id="`+html.EscapeString(strings.ReplaceAll(id, "\x00", "\uFFFD"))+`"`) {
				t.Errorf("%s: %s leads nowhere", name, m[0])
			}
		}
	}
}
