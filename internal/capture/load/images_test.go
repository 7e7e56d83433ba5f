package load

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A question is a chat's request, as far as images matter.
type question struct {
	Prompt   any `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content []struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			ImageURL struct {
				URL string `json:"url"`
			} `json:"image_url"`
		} `json:"content"`
	} `json:"messages"`
}

// chatted reads what a server was asked, all of it chats of one message: images, and then text.
func chatted(t *testing.T, asked []string, images int) (texts []string, urls map[string]int) {
	t.Helper()
	urls = map[string]int{}
	for _, line := range asked {
		body, isChat := strings.CutPrefix(line, "POST "+chatPath+" ")
		var q question
		err := json.Unmarshal([]byte(body), &q)
		if !isChat || err != nil || q.Prompt != nil || len(q.Messages) != 1 || q.Messages[0].Role != "user" {
			t.Fatalf("asked %.100s: %v; want a chat of one message", line, err)
		}
		parts := q.Messages[0].Content
		if len(parts) != images+1 || parts[images].Type != "text" || parts[images].Text == "" {
			t.Fatalf("%d parts, the last of type %q; want %d images and text", len(parts), parts[len(parts)-1].Type, images)
		}
		for _, part := range parts[:images] {
			require.True(t, part.Type == "image_url" && part.Text == "", "a part before the text is %+v", part)
			urls[part.ImageURL.URL]++
		}
		texts = append(texts, parts[images].Text)
	}
	return texts, urls
}

// Workloads with images ask for answers of the same length about images, of which some come again.
func TestImagesInSteadyWorkloads(t *testing.T) {
	tests := []struct {
		name               string
		workload           Workload
		shape              Shape
		requests           int
		once, again, times int // images that come once, the others, and how often these come
	}{
		{
			name: "one each", workload: Concurrency, requests: 16, once: 8, again: 4, times: 2,
			shape: Shape{Requests: 16, PromptTokens: 5, OutputTokens: 4, Images: 1},
		},
		{
			name: "two each", workload: Stairs, requests: 12, once: 12, again: 4, times: 3,
			shape: Shape{Stairs: []int{1, 2, 3}, Requests: 4, PromptTokens: 5, OutputTokens: 4, Images: 2},
		},
		{
			name: "asked for text", workload: Bursts, requests: 8, once: 12, again: 4, times: 3,
			shape: Shape{Bursts: 2, Requests: 4, Every: 1, PromptTokens: 5, OutputTokens: 4, Images: 3, Text: true},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newServer(t)
			server.exact = true
			cfg := config(server.URL, test.workload, 7)
			cfg.Shape = test.shape
			report, err := Run(t.Context(), cfg)
			require.True(t, err == nil && report.Completed == test.requests && report.Tokens == 4*test.requests, "got %+v, %v; want %d requests of 4 tokens each", report, err, test.requests)
			asked := server.questions()
			if got := count(asked, `"ignore_eos":true,"max_tokens":4,`); got != test.requests {
				t.Errorf("%d requests want 4 tokens, want %d", got, test.requests)
			}
			texts, urls := chatted(t, asked, test.shape.Images)
			for _, text := range texts {
				require.Equal(t, len(strings.Fields(text)), 5, "text of words: %q", text)
			}
			once, again := 0, 0
			for _, times := range urls {
				switch times {
				case 1:
					once++
				case test.times:
					again++
				default:
					t.Errorf("an image came %d times, want 1 or %d", times, test.times)
				}
			}
			require.True(t, once == test.once && again == test.again, "%d images came once and %d more often, want %d and %d", once, again, test.once, test.again)
		})
	}
}

// Images are PNGs of one of a few sizes, and follow from seed and number.
func TestDrawImages(t *testing.T) {
	sizes := map[[2]int]int{}
	for _, url := range drawImages(7, 0, 64) {
		data, isPNG := strings.CutPrefix(url, "data:image/png;base64,")
		file, err := base64.StdEncoding.DecodeString(data)
		if !isPNG || err != nil {
			t.Fatalf("%.50s: %v", url, err)
		}
		img, err := png.Decode(bytes.NewReader(file))
		require.NoError(t, err)
		sizes[[2]int{img.Bounds().Dx(), img.Bounds().Dy()}]++
		if _, _, _, alpha := img.At(3, 3).RGBA(); alpha != 0xffff {
			t.Error("an image is not opaque")
		}
	}
	for _, size := range [][2]int{{56, 56}, {56, 84}, {84, 56}, {84, 84}} {
		require.True(t, sizes[size] != 0 && len(sizes) == 4, "sizes are %v, want also %v", sizes, size)
	}
	first, second, other := drawImages(7, 3, 1)[0], drawImages(7, 3, 1)[0], drawImages(8, 3, 1)[0]
	require.Equal(t, first, second, "an image, the second time")
	require.True(t, first != other, "another seed has the same image")
	if got := drawImages(7, 3, 0); len(got) != 0 {
		t.Errorf("no images are %d", len(got))
	}
}
