"""What commands do that need much: imported when they run, and their options stand elsewhere."""
