package load

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/png"
	"math/rand/v2"
)

// sharedImages are how many images come again and again; see [drawImages].
const sharedImages = 4

// drawImages are the images of a prompt as data URLs. Every other one of a workload is of no other prompt, and the rest
// are shared, so that an engine encodes some anew and finds some in its caches.
func drawImages(seed uint64, number, images int) []string {
	urls := make([]string, images)
	for i := range urls {
		part := number*images + i
		if part%2 == 1 {
			part = -1 - part/2%sharedImages // no other image has a number below zero
		}
		// Apart from the generators of prompts.
		urls[i] = dataURL(drawImage(rand.New(rand.NewPCG(^seed, uint64(part)))))
	}
	return urls
}

// drawImage is noise. Its sides are one of two lengths, so that images have different numbers of tokens.
func drawImage(rng *rand.Rand) image.Image {
	side := func() int { return 28 * between(rng, 2, 3) }
	img := image.NewNRGBA(image.Rect(0, 0, side(), side()))
	for i := range img.Pix {
		img.Pix[i] = byte(rng.Uint32())
		if i%4 == 3 {
			img.Pix[i] = 255 // opaque
		}
	}
	return img
}

// dataURL is a PNG. It is not compressed, which would make its bytes depend on the compressor's version.
func dataURL(img image.Image) string {
	var file bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.NoCompression}
	_ = encoder.Encode(&file, img) // a buffer takes all, and the image has a size that PNGs can have
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes())
}

// withImages is the content of a chat's message: images, and then text.
func withImages(urls []string, text any) []object {
	var parts []object
	for _, url := range urls {
		parts = append(parts, object{"type": "image_url", "image_url": object{"url": url}})
	}
	return append(parts, object{"type": "text", "text": text})
}
