s/make run/& CPU=1/
