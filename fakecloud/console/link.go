package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// maxErrorBody is how many bytes of an answer an error has.
const maxErrorBody = 512

// newLink is the answer that has a link's secret.
type newLink struct {
	Link string `json:"link"`
}

// RequestLink returns the URL that opens the page at a URL which ends with "/". With renew, the credential's
// earlier links and sessions end. Somebody else may answer there, so the answer is escaped for a terminal.
func RequestLink(ctx context.Context, c *http.Client, page, credential string, renew bool) (link string, err error) {
	links := page + "links"
	if renew {
		links += "?renew"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, links, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // What there is of it.
		return "", fmt.Errorf("%d %s: %q", resp.StatusCode, http.StatusText(resp.StatusCode), strings.TrimSpace(string(text)))
	}
	var made newLink
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
		return "", err
	}
	return page + "#link=" + url.QueryEscape(made.Link), nil
}
