package registration

import "fmt"

// DidYouMean returns a hint at the known word that is nearest to what was written, or nothing when none is near.
func DidYouMean(word string, known []string) string {
	best, bestDistance := "", 3 // two slips at most
	if len(word) > maxNameBytes {
		return ""
	}
	for _, k := range known {
		// In a short word two slips leave nothing of it.
		if d := editDistance(word, k); d < bestDistance && d*2 <= len(k) {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// editDistance counts the insertions, deletions and replacements of bytes that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
