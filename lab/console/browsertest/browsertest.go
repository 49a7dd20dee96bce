// Package browsertest has tests look at pages in a real browser.
package browsertest

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// Open starts a browser that ends with the test. Where there is none the test is skipped, except in CI.
func Open(t testing.TB, flags ...chromedp.ExecAllocatorOption) context.Context {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil && os.Getenv("CI") == "" {
		t.Skip("needs a browser: Debian's package chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"),
		chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1600, 1000),
		chromedp.NoSandbox) // It opens our pages alone, and a container may have no user namespaces for a sandbox.
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(options, flags...)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	_, err := chromedp.Run(ctx, chromedp.Title()) // A bound on the first call would be the browser's.
	require.NoError(t, err)
	return ctx
}
