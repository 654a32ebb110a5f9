"""WHO OWNS A NODE'S WORK: it starts, stops and reaps it, and keeps results until they are safe."""
