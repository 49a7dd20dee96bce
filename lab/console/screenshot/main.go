// Command screenshot writes what a browser shows of a page, for the README.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/chromedp/chromedp"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./lab/console/screenshot URL FILE.png")
		os.Exit(2)
	}
	if err := writeScreenshot(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

// settled is true when the picture and the story have been drawn.
const settled = `document.querySelector(".zone .machine") !== null && document.querySelector("#entries li") !== null`

func writeScreenshot(url, file string) error {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1500, 900),
		chromedp.NoSandbox) // It opens the lab's page alone, maybe as root.
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx,
		chromedp.Navigate(url),
		chromedp.Poll[chromedp.Void](settled, chromedp.WithPollingTimeout(20*time.Second)),
		chromedp.Sleep(3*time.Second), // Explanations come after the picture.
	); err != nil {
		return err
	}
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return os.WriteFile(file, picture, 0o644)
}
